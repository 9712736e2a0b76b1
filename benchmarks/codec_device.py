"""The torch path of the codec on one device: dense bytes per second, and over a copy on that device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from aurora_p2p.delta.block import BlockReader
from aurora_p2p.delta.classes.map import learn, sampled
from aurora_p2p.delta.device import decode_on, digest_lanes, encode_tensor, write_on
from aurora_p2p.types import TensorSpec
from benchmarks.codec_rivals import Pair

ROUNDS = 5


def device_figures(pair: Pair, device: str) -> dict[str, Any]:
    """Medians. extract: find, rank and encode the changes; apply: decode, place and write; copy: `clone`."""
    spec, classes = TensorSpec("all", "BF16", pair[0].shape), learn(sampled([pair]))
    base, new = (torch.from_numpy(bits.view("i2").copy()).to(device) for bits in pair)
    coded = [block for piece, _ in encode_tensor(0, base, new, classes) for block in BlockReader().feed(piece)]
    held = base.clone()

    def apply() -> None:
        for block in coded:
            assert write_on(decode_on(block, spec, held, classes), held)

    jobs: dict[str, Callable[[], object]] = {
        "copy": base.clone,
        "extract": lambda: list(encode_tensor(0, base, new, classes)),
        "apply": apply,
        "digest": lambda: digest_lanes(spec, base),
    }
    seconds = {name: _median(job, device, lambda: held.copy_(base)) for name, job in jobs.items()}
    held.copy_(base)
    apply()
    assert torch.equal(held, new)
    speeds = {f"{name}_gb_per_s": pair[0].nbytes / taken / 1e9 for name, taken in seconds.items()}
    ratios = {f"{name}_over_copy": seconds["copy"] / taken for name, taken in seconds.items() if name != "copy"}
    return {"device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device, **speeds, **ratios}


def _median(job: Callable[[], object], device: str, prepare: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        prepare()
        _wait(device)
        started = time.perf_counter()
        job()
        _wait(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
