"""`python -m benchmarks.codec_device [--json] [--device DEVICE]`: the torch path of the codec on one device.

Exactness first: over dtypes and shares of changed elements, the artifact's bytes, the digest and the weights that lead
out of it are compared with the CPU path's; `mismatches` names what differs, and the command then ends with status 1.
Then speed, medians over rounds: dense bytes of one checkpoint per second, and over a copy on that device in the same
run, and the bytes that left the device per change. Then peaks of memory beside the tensors, as the device's allocator
counts it. It takes about a minute on one core; the first GPU is used when there is one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from aurora_p2p.delta.block import BlockReader, RawBlock
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap, learn, sampled
from aurora_p2p.delta.device import Crossing, batches, decode_on, digest_lanes, write_on
from aurora_p2p.delta.device_encode import CHUNK_ELEMENTS, DeviceEncoder, encode_tensor, learn_on
from aurora_p2p.delta.digest import EMPTY, RunningDigest, full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits
from aurora_p2p.types import DTYPES, TensorSpec
from benchmarks.codec_data import synthetic_steps
from benchmarks.codec_rivals import Pair

ROUNDS = 5
EXACT_BLOCKS = {"BF16": 9}
"""Whole blocks of the tensor that is compared, before a short one: bf16's go beyond a chunk of eight; others: 2."""
SHARES = (0.0, 0.001, 0.05, 1.0)
TIMED_ELEMENTS = 1 << 24
PEAK_SHARES = (0.001, 0.01, 0.1, 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec_device", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="a torch device")
    options = parser.parse_args()
    report = {
        "exactness": exactness(options.device),
        "synthetic": timed(options.device),
        "peak_extra_mib": {f"{share:g}": peaks(share, options.device) for share in PEAK_SHARES},
    }
    print(json.dumps(report) if options.json else json.dumps(report, indent=2))
    return 1 if report["exactness"]["mismatches"] else 0


def timed(device: str) -> dict[str, Any]:
    source = synthetic_steps(TIMED_ELEMENTS)
    return device_figures((next(source), next(source)), device)


# ---- exactness


def exactness(device: str) -> dict[str, Any]:
    """Every comparison with the CPU path, and the names of those that failed."""
    found = {
        f"{dtype} at {share:g}: {what}": same
        for dtype in sorted(DTYPES)
        for share in SHARES
        for what, same in compared(dtype, share, device).items()
    }
    return {"comparisons": len(found), "mismatches": [name for name, same in found.items() if not same]}


def compared(dtype: str, share: float, device: str) -> Mapping[str, bool]:
    """One tensor of random bits, of which a share takes other ones: most a near one, some 0 or 1."""
    rng = np.random.default_rng(int(1000 * share))
    kind = np.dtype(f"u{DTYPES[dtype]}")
    elements = EXACT_BLOCKS.get(dtype, 2) * BLOCK_ELEMENTS + 777
    base = rng.integers(0, np.iinfo(kind).max, elements, kind, endpoint=True)
    moved = base ^ np.where(rng.random(elements) < 0.9, rng.integers(1, 8, elements, kind), base | kind.type(1))
    new = np.where(rng.random(elements) < share, moved, base)
    spec = TensorSpec("w", dtype, (elements,))
    there = [_on(bits, device) for bits in (base, new)]
    halves = kind.itemsize == 2
    classes = learn(sampled([(base, new)])) if halves else ONE_CLASS
    start = full_digest([spec], {"w": base})
    ours = DeviceEncoder([spec], {"w": there[0]}, {"w": there[1]}, start, classes)
    coded, expected = list(ours), list(encode_delta([spec], {"w": base}, {"w": new}, start, classes))
    whole = list(DeviceEncoder([spec], None, {"w": there[1]}, EMPTY))
    lanes = RunningDigest(EMPTY)
    lanes.add_lanes(digest_lanes(spec, there[1]))
    held = there[0].clone()
    applied = all(write_on(change, held) for change in decoded(coded, spec, held, classes))
    return {
        "class map": not halves or learn_on([(there[0], there[1])], elements, Crossing()) == classes,
        "extraction": coded == expected,
        "snapshot": whole == list(encode_snapshot([spec], {"w": new})),
        "digest of the delta": ours.digest == full_digest([spec], {"w": new}),
        "digest in full": lanes.value() == full_digest([spec], {"w": new}),
        "apply": applied and np.array_equal(Crossing().bits(held), new),
    }


def decoded(coded: list[bytes], spec: TensorSpec, base: Tensor, classes: ClassMap) -> Iterator[Any]:
    """The changes of a stream, in pieces as an engine commits them: all are decoded before the first is written."""
    return batches([decode_on(one, spec, _before(one, base), classes) for one in _blocks(coded)])


def _blocks(coded: list[bytes]) -> list[RawBlock]:
    return [block for piece in coded for block in BlockReader().feed(piece)]


def _before(block: RawBlock, base: Tensor) -> Tensor:
    return base[block.offset : block.offset + block.length]


def _on(bits: Bits, device: str) -> Tensor:
    signed = bits if bits.itemsize == 1 else bits.view(np.dtype(f"i{bits.itemsize}"))
    return torch.from_numpy(signed.copy()).to(device)


# ---- speed


def device_figures(pair: Pair, device: str) -> dict[str, Any]:
    """Medians. extract: find, rank and encode the changes; stage: decode; commit: place and write; copy: `clone`."""
    spec, classes = TensorSpec("all", "BF16", pair[0].shape), learn(sampled([pair]))
    base, new = (_on(bits, device) for bits in pair)
    crossing = Crossing()
    pieces = list(encode_tensor(0, base, new, classes, crossing))
    coded, changed = [piece for piece, _ in pieces], sum(change.positions.size for _, change in pieces)
    staged, held = list(decoded(coded, spec, base, classes)), base.clone()
    jobs: dict[str, Callable[[], object]] = {
        "copy": base.clone,
        "extract": lambda: list(encode_tensor(0, base, new, classes)),
        "stage": lambda: list(decoded(coded, spec, base, classes)),
        "commit": lambda: [write_on(change, held) for change in staged],
        "apply": lambda: [write_on(change, held) for change in decoded(coded, spec, base, classes)],
        "digest": lambda: digest_lanes(spec, base),
    }
    seconds = {name: _median(job, device, lambda: held.copy_(base)) for name, job in jobs.items()}
    assert torch.equal(held.copy_(base), base)
    assert all(write_on(change, held) for change in staged)
    assert torch.equal(held, new)
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "changed_ratio": changed / pair[0].size,
        "off_device_bytes_per_change": crossing.bytes_off_device / max(1, changed),
        **{f"{name}_gb_per_s": pair[0].nbytes / taken / 1e9 for name, taken in seconds.items()},
        **{f"{name}_over_copy": seconds["copy"] / taken for name, taken in seconds.items() if name != "copy"},
    }


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


# ---- memory


def peaks(share: float, device: str) -> dict[str, float]:
    """MiB beside the tensors while one chunk of bf16 is worked on, of which a share changed."""
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.02, CHUNK_ELEMENTS).astype(np.float32)
    base = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    new = np.where(rng.random(base.size) < share, base + np.uint16(1), base)
    spec, classes = TensorSpec("all", "BF16", base.shape), learn(sampled([(base, new)]))
    old, there = _on(base, device), _on(new, device)
    coded = [piece for piece, _ in encode_tensor(0, old, there, classes)]
    staged, held = list(decoded(coded, spec, old, classes)), old.clone()
    jobs: dict[str, Callable[[], object]] = {
        "extract": lambda: list(encode_tensor(0, old, there, classes)),
        "stage": lambda: list(decoded(coded, spec, old, classes)),
        "commit": lambda: [write_on(change, held) for change in staged],
        "digest": lambda: digest_lanes(spec, old),
    }
    measure = _cuda_peak if device.startswith("cuda") else _cpu_peak
    return {name: round(measure(job) / 2**20, 1) for name, job in jobs.items()}


def _cuda_peak(job: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    job()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(job: Callable[[], object]) -> int:
    """From the profiler's record of what torch's allocator took and gave back; arrays of numpy are not in it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        job()
    records = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = highest = 0
    for record in sorted(records, key=lambda event: event.start_ns()):
        now += record.nbytes()
        highest = max(highest, now)
    return highest


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
