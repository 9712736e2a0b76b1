from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.engine.sampling import draw, noise_words

SEED = st.integers(0, 2**63 - 1)


def murmur3_x86_32(message: bytes) -> int:
    """Austin Appleby's MurmurHash3_x86_32 with start value 0, for whole 4-byte blocks, written from its definition."""
    state = 0
    for start in range(0, len(message), 4):
        block = int.from_bytes(message[start : start + 4], "little") * 0xCC9E2D51 % 2**32
        block = (block << 15 | block >> 17) % 2**32 * 0x1B873593 % 2**32
        state ^= block
        state = ((state << 13 | state >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    state ^= len(message)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16


def test_the_reference_hash_gives_the_published_values():
    assert murmur3_x86_32(b"") == 0
    assert murmur3_x86_32(b"test") == 0xBA6BD213


@given(SEED, st.integers(0, 2**20), st.integers(1, 40))
def test_every_word_is_the_hash_of_seed_position_and_token(seed, position, vocabulary):
    words = noise_words(torch.tensor([seed]), position, vocabulary)[0].tolist()
    for token, word in enumerate(words):
        message = b"".join(part.to_bytes(4, "little") for part in (seed % 2**32, seed >> 32, position, token))
        assert word == murmur3_x86_32(message)


@given(st.lists(SEED, min_size=1, max_size=8), st.integers(0, 1000), st.sampled_from([0.3, 1.0, 2.5]))
def test_a_draw_is_the_noisy_argmax_and_its_logprob_is_before_the_noise(seeds, position, temperature):
    logits = torch.randn(len(seeds), 50, generator=torch.Generator().manual_seed(position)) * 3
    tokens, logprobs = draw(logits, torch.tensor(seeds), position, temperature)
    words = noise_words(torch.tensor(seeds), position, 50).tolist()
    for row, scaled in enumerate((logits.double() / temperature).log_softmax(-1).tolist()):
        noise = [-math.log(-math.log1p(-(word + 0.5) / 2**32)) for word in words[row]]
        scores = [value + extra for value, extra in zip(scaled, noise, strict=True)]
        best = max(scores)
        assert best - scores[int(tokens[row])] < 1e-4
        assert abs(float(logprobs[row]) - scaled[int(tokens[row])]) < 1e-4
        assert float(logprobs[row]) <= 0.0


def test_seeds_draw_from_the_softmax():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).expand(20_000, 3)
    tokens, _ = draw(logits, torch.arange(20_000) * 7919, 3, 1.0)
    shares = torch.bincount(tokens, minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.015)
