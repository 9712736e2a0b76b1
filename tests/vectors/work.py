"""Vectors of work: a signed lease, its request and its result; seeds; the noise and the draw of a token."""

from __future__ import annotations

import math
from typing import Any

from aurora_p2p.lease.terms import lease_id_of, seed_of
from aurora_p2p.types import LeaseId, ManifestHash, RunId, StateDigest, Step, Version
from aurora_p2p.wire.control import Lease, LeaseRequest, LeaseSample, SampleResult, Sampling
from aurora_p2p.wire.signed import Signable, seal
from tests.vectors.swarm import KEYS, NONCE, envelope

SECRET = bytes([0x5E]) * 32
DRAWS = [(7, 4, (0, 0)), (7, 4, (0, 1)), (7, 4, (1, 0)), (8, 4, (0, 0)), (7, 3, (0, 0)), (2**32, 0, (2**20, 1023))]
NOISE = [(0, 0, 0), (1, 0, 0), (2**63 - 1, 17, 263), (2**32 + 5, 70_000, 151_935)]
LOGITS = [0.5, -1.25, 3.0, 2.875, 0.0, -7.5, 2.9375, 1.0]
M32 = 2**32 - 1
RUN, MANIFEST, DIGEST = RunId(bytes([0x52]) * 16), ManifestHash(bytes([0xC0]) * 32), StateDigest(bytes([0xD0]) * 32)


def leases() -> dict[str, Any]:
    """Request, lease and result as they are signed; how this host makes seeds and lease ids."""
    sampling = Sampling(temperature=0.75, max_tokens=4, vocabulary=32, stop_tokens=(2,))
    seed, lease = seed_of(SECRET, 7, 6, (0, 1)), lease_id_of(SECRET, 5 << 32)
    values: dict[str, tuple[str, Signable]] = {
        "request": ("node-a", LeaseRequest(NONCE, RUN, Version(6), MANIFEST, DIGEST, 812.5, 64)),
        "lease": ("lease", _lease(lease, sampling, seed)),
        "result": ("node-a", _result(lease, seed)),
    }
    return {
        "signed": [
            {"name": name} | envelope(who, seal(KEYS[who], value), value) for name, (who, value) in values.items()
        ],
        "seeds": [
            {"secret": SECRET.hex(), "step": step, "version": version, "prompt": slot[0], "sample": slot[1]}
            | {"seed": seed_of(SECRET, step, version, slot)}
            for step, version, slot in DRAWS
        ],
    }


def sampling() -> dict[str, Any]:
    """Noise words, the noise itself (12 digits), and draws over one row of logits (6 digits of the log-probability)."""
    return {
        "noise": [
            {"seed": seed, "position": position, "token": token, "word": noise_word(seed, position, token)}
            | {"gumbel": float(f"{gumbel(seed, position, token):.12g}")}
            for seed, position, token in NOISE
        ],
        "draws": [
            {"logits": LOGITS, "temperature": 0.75, "seed": seed, "position": 9} | draw(LOGITS, seed, 9, 0.75)
            for seed in (0, 1, 2, 3, 2**40 + 7, 2**63 - 1)
        ],
    }


def draw(logits: list[float], seed: int, position: int, temperature: float) -> dict[str, Any]:
    """Token and log-probability, straight from the specification's formula."""
    scaled = [logit / temperature for logit in logits]
    total = math.log(math.fsum(math.exp(value) for value in scaled))
    logprobs = [value - total for value in scaled]
    noisy = [logprob + gumbel(seed, position, token) for token, logprob in enumerate(logprobs)]
    token = noisy.index(max(noisy))
    return {"token": token, "logprob": float(f"{logprobs[token]:.6g}")}


def gumbel(seed: int, position: int, token: int) -> float:
    return -math.log(-math.log1p(-(noise_word(seed, position, token) + 0.5) / 2**32))


def noise_word(seed: int, position: int, token: int) -> int:
    """MurmurHash3 x86_32 with start value 0 over four words."""
    state = 0
    for block in (seed & M32, seed >> 32, position & M32, token):
        state ^= _rotate(block * 0xCC9E2D51 & M32, 15) * 0x1B873593 & M32
        state = _rotate(state, 13) * 5 + 0xE6546B64 & M32
    state ^= 16
    state = (state ^ state >> 16) * 0x85EBCA6B & M32
    state = (state ^ state >> 13) * 0xC2B2AE35 & M32
    return state ^ state >> 16


def _rotate(word: int, count: int) -> int:
    return (word << count | word >> 32 - count) & M32


def _lease(lease: LeaseId, sampling: Sampling, seed: int) -> Lease:
    return Lease(
        lease=lease,
        lessee=KEYS["node-a"].peer,
        run=RUN,
        target_step=Step(7),
        version=Version(6),
        manifest_hash=MANIFEST,
        digest=DIGEST,
        fencing=5 << 32,
        seconds=12.5,
        sampling=sampling,
        prompts=((5, 6, 7),),
        samples=(LeaseSample(0, 1, seed, 0),),
    )


def _result(lease: LeaseId, seed: int) -> SampleResult:
    return SampleResult(
        lease=lease,
        fencing=5 << 32,
        run=RUN,
        target_step=Step(7),
        prompt=0,
        sample=1,
        seed=seed,
        version=Version(6),
        manifest_hash=MANIFEST,
        digest=DIGEST,
        audited=Version(5),
        tokens=(9, 2),
        logprobs=(-0.5, -0.0078125),
        finish="stop",
    )
