"""Seed-bound sampling: a token follows from weights, prompt and seed alone, whoever draws it and in whatever batch.

    token = argmax over v of  log_softmax(logits / T)[v] + g(seed, position, v)         the lowest v among equals
    g     = -log(-log1p(-u)),  u = (w + 0.5) / 2**32,  in float64
    w     = murmur3_x86_32 (start value 0) of the 16 bytes
            uint32 LE: seed mod 2**32, seed div 2**32, position mod 2**32, v

position is the index of the last input token, counted from 0 at the first prompt token: the token drawn has index
position + 1. This is the noise that vLLM's Model Runner V2 draws for a plain `seed=`. The word w is integer arithmetic,
the same on every device; log differs by about 1e-15 between them.

The log-probability of a token is log_softmax(logits / T) before any noise, in float32.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def _rotate(word: torch.Tensor, count: int) -> torch.Tensor:
    return ((word << count) | (word >> (32 - count))) & _MASK


def _scramble(block: torch.Tensor) -> torch.Tensor:
    # Products wrap in int64; their low 32 bits, all that is kept, are right.
    return (_rotate((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    return (_rotate(state ^ _scramble(block), 13) * 5 + 0xE6546B64) & _MASK


def _finish(state: torch.Tensor) -> torch.Tensor:
    state = state ^ 16
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def noise_words(seeds: torch.Tensor, position: int, vocabulary: int) -> torch.Tensor:
    """seeds: int64[n], 63-bit. Returns w as int64[n, vocabulary] in 0 .. 2**32 - 1."""
    state = torch.zeros_like(seeds)
    for block in (seeds & _MASK, (seeds >> 32) & _MASK, torch.full_like(seeds, position & _MASK)):
        state = _mix(state, block)
    tokens = torch.arange(vocabulary, dtype=torch.int64, device=seeds.device)
    return _finish(_mix(state[:, None], tokens[None, :]))


def draw(
    logits: torch.Tensor, seeds: torch.Tensor, position: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits: float[n, vocabulary], seeds: int64[n]. Returns tokens int64[n] and log-probabilities float32[n], <= 0."""
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    uniform = (noise_words(seeds, position, logits.shape[-1]).double() + 0.5) * 2.0**-32
    tokens = (logprobs.double() - torch.log(-torch.log1p(-uniform))).argmax(dim=-1)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)
