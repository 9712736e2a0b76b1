"""`python -m benchmarks.codec [--json] [--quick]`: how small, how fast and how exact the delta codec is.

Sizes are of whole artifacts, framing and CRC included. Speeds are single-thread, CPU time, as ratios to a memcpy of the
same arrays in the same run: medians of several rounds, dense bytes of one checkpoint per second on both sides. Encoding
includes scan, framing and CRC; applying is decoding each block and writing it in place at once; stage_then_write writes
only when all are decoded, as an engine does. The digest is reported beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from aurora_p2p.delta.apply import stage, write
from aurora_p2p.delta.block import BlockReader
from aurora_p2p.delta.classes import block as class_block
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap, learn, sampled
from aurora_p2p.delta.coding import decode_block, encode_block
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta
from aurora_p2p.delta.tensors import Bits, blocks
from aurora_p2p.delta.touch import write_at
from aurora_p2p.errors import WireError
from aurora_p2p.types import TensorSpec
from benchmarks.codec_data import REAL, real_pair, synthetic_steps
from benchmarks.codec_device import device_figures
from benchmarks.codec_rivals import RIVALS, Pair, added, bound, python_varint_loop
from benchmarks.codec_squash import squash_figures

PARAMETERS = 8.19e9
"""Of Qwen3-8B."""
ROUNDS = 7
TIMED_ELEMENTS = 1 << 25
"""Real steps are tiled to this size for timing: 64 MiB, beyond any second-level cache."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="less data, under a minute")
    options = parser.parse_args()
    report = run(quick=options.quick)
    print(json.dumps(report) if options.json else render(report))


def run(*, quick: bool) -> dict[str, Any]:
    """Every figure; progress on stderr."""
    elements, steps, fuzz = (1 << 21, 100, 20_000) if quick else (1 << 24, 100, 1_000_000)
    source = synthetic_steps(elements)
    pair = (next(source), next(source))
    datasets = {name: dataset(name, real_pair(name)) for name in REAL}
    datasets["synthetic"] = dataset("synthetic", pair)
    say("thread scaling")
    report: dict[str, Any] = {"datasets": datasets, "thread_scaling": thread_scaling(tiled(real_pair("rl1e-6")))}
    report["encode_over_python_varint"] = over_python(real_pair("rl1e-6"))
    chain = elements if quick else elements // 8
    report["mismatches_after_100"] = mismatches(synthetic_steps(min(chain, 1 << 21), seed=1), steps)
    report["peak_extra_mb"] = peaks(pair)
    say("squash")
    report["squash"] = squash_figures(synthetic_steps(elements, seed=2))
    report["peak_extra_mb"]["squash"] = report["squash"]["peak_extra_mb"]
    say(f"{fuzz:,} damaged payloads")
    report["fuzz"] = fuzzed(fuzz)
    for device in devices():
        say(f"torch on {device}")
        report.setdefault("devices", []).append(device_figures(pair, device))
    return report


def devices() -> list[str]:
    """Where the torch path is measured: the CPU, for its cost beside the kernels, and the first GPU if there is one."""
    return ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- one data set


def dataset(name: str, pair: Pair) -> dict[str, Any]:
    say(f"{name}: {pair[0].size:,} elements")
    base, new = pair
    classes, changed = learn(sampled([pair])), int(np.count_nonzero(base != new))
    sizes = {"ours": artifact_bytes(pair, classes), "one_class": artifact_bytes(pair, ONE_CLASS)}
    sizes |= {rival: len(code(pair)) for rival, code in RIVALS.items()}
    share = changed / base.size
    return {
        "elements": base.size,
        "changed_ratio": share,
        "bound": bound(pair),
        "bits_per_change": {code: 8 * size / changed for code, size in sizes.items()},
        "share_of_raw": sizes["ours"] / base.nbytes,
        "mb_per_8b": {code: size / base.size * PARAMETERS / 1e6 for code, size in sizes.items()},
        **speeds(tiled(pair), classes),
    }


def artifact_bytes(pair: Pair, classes: ClassMap) -> int:
    """Bytes of the delta as one tensor; asserts that it leads back to `new`."""
    size, result = 0, pair[0].copy()
    spec = TensorSpec("all", "BF16", pair[0].shape)
    for coded in encoded_blocks(pair, classes):
        size += len(coded)
        (one,) = BlockReader().feed(coded)
        change = decode_block(one, spec, pair[0], classes)
        result[change.positions] = change.new
    assert np.array_equal(result, pair[1])
    return size


def encoded_blocks(pair: Pair, classes: ClassMap) -> Iterable[bytes]:
    base, new = pair
    for offset, length in blocks(base.size):
        span = slice(offset, offset + length)
        yield encode_block(0, offset, base[span], new[span], classes)[0]


def tiled(pair: Pair) -> Pair:
    times = max(1, TIMED_ELEMENTS // pair[0].size)
    return np.tile(pair[0], times), np.tile(pair[1], times)


def speeds(pair: Pair, classes: ClassMap) -> dict[str, float]:
    """Medians over rounds that take turns, so that a busy moment hits all alike."""
    base, new = pair
    spec, target, held = TensorSpec("all", "BF16", base.shape), np.empty_like(base), base.copy()
    stream = list(encoded_blocks(pair, classes))
    coded = [BlockReader().feed(piece)[0] for piece in stream]
    digest = full_digest((spec,), {"all": base})

    def apply() -> None:
        for one in coded:
            change = decode_block(one, spec, held, classes)
            write_at(held, change.positions, change.new)

    def stage_then_write() -> None:
        staged = [decode_block(one, spec, held, classes) for one in coded]
        for change in staged:
            write_at(held, change.positions, change.new)

    def encode() -> None:
        for _ in encoded_blocks(pair, classes):
            pass

    def with_digest() -> None:
        for _ in encode_delta((spec,), {"all": base}, {"all": new}, digest, classes):
            pass

    times = interleaved(
        {
            "memcpy": lambda: np.copyto(target, base),
            "encode": encode,
            "encode_with_digest": with_digest,
            "apply": apply,
            "stage_then_write": stage_then_write,
            "digest": lambda: full_digest((spec,), {"all": base}),
        },
        prepare=lambda: np.copyto(held, base),
    )
    np.copyto(held, base)
    apply()
    assert np.array_equal(held, new)
    ratios = {f"{name}_over_memcpy": times["memcpy"] / seconds for name, seconds in times.items() if name != "memcpy"}
    return ratios | {"memcpy_gb_per_s": base.nbytes / times["memcpy"] / 1e9}


def interleaved(
    jobs: dict[str, Callable[[], object]], prepare: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Median CPU seconds of each job, with `prepare` before each, untimed."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            prepare()
            started = time.thread_time()
            job()
            taken[name].append(time.thread_time() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


# ---- threads, Python, exactness


def thread_scaling(pair: Pair) -> dict[str, float]:
    """What a second thread gives, over what it gives to memcpy; wall time."""
    base, new = pair
    classes, spec = learn(sampled([pair])), TensorSpec("all", "BF16", base.shape)
    target, spans = np.empty_like(base), [slice(o, o + length) for o, length in blocks(base.size)]
    coded = [BlockReader().feed(piece)[0] for piece in encoded_blocks(pair, classes)]
    jobs: dict[str, tuple[Sequence[Any], Callable[[Any], object]]] = {
        "memcpy": (spans, lambda span: np.copyto(target[span], base[span])),
        "encode": (spans, lambda span: class_block.encode(base[span], new[span], classes)),
        "apply": (coded, lambda one: decode_block(one, spec, base, classes)),
    }
    gains = {}
    with ThreadPoolExecutor(2) as pool:
        for name, (items, job) in jobs.items():
            alone, both = [], []
            for _ in range(ROUNDS):
                alone.append(wall(lambda items=items, job=job: [job(item) for item in items]))
                both.append(
                    wall(
                        lambda items=items, job=job: list(pool.map(lambda part: [job(i) for i in part], halves(items)))
                    )
                )
            gains[name] = statistics.median(alone) / statistics.median(both)
    return {name: gains[name] / gains["memcpy"] for name in ("encode", "apply")} | {"memcpy_gain": gains["memcpy"]}


def halves(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[: len(items) // 2], items[len(items) // 2 :]]


def wall(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def over_python(pair: Pair) -> float:
    """Encoding speed over a Python loop that writes varints element by element."""
    classes = learn(sampled([pair]))
    times = interleaved({"ours": lambda: list(encoded_blocks(pair, classes)), "loop": lambda: python_varint_loop(pair)})
    return times["loop"] / times["ours"]


def mismatches(steps: Iterable[Bits], count: int) -> dict[str, Any]:
    """Wrong elements after `count` chained steps, by bits and by digest."""
    say(f"{count} chained steps")
    source = iter(steps)
    base = next(source)
    spec = TensorSpec("all", "BF16", base.shape)
    ours, additive, digest = base.copy(), base.copy(), full_digest((spec,), {"all": base})
    wrong_digests = 0
    for _ in range(count):
        new = next(source)
        classes = learn(sampled([(base, new)]))
        encoder = encode_delta((spec,), {"all": base}, {"all": new}, digest, classes)
        stream = list(encoder)
        staged = stage((spec,), stream, {"all": ours}, digest, encoder.digest, classes)
        write(staged, {"all": ours}, (spec,))
        wrong_digests += full_digest((spec,), {"all": ours}) != encoder.digest
        additive = added(additive, (base, new))
        base, digest = new, encoder.digest
    return {
        "elements": base.size,
        "steps": count,
        "ours": int(np.count_nonzero(ours != base)),
        "ours_wrong_digests": int(wrong_digests),
        "additive": int(np.count_nonzero(additive != base)),
    }


def peaks(pair: Pair) -> dict[str, float]:
    """Largest extra memory, MB, beside base and new: measured by tracemalloc, which numpy reports to."""
    say("peak memory")
    base, new = pair
    specs, before, after = (TensorSpec("all", "BF16", base.shape),), {"all": base.copy()}, {"all": new}
    classes, digest = learn(sampled([pair])), full_digest((TensorSpec("all", "BF16", base.shape),), {"all": base})
    stream, figures = list(encode_delta(specs, before, after, digest, classes)), {}
    expected = full_digest(specs, after)

    def encode() -> None:
        for _ in encode_delta(specs, before, after, digest, classes):
            pass

    def apply() -> None:
        write(stage(specs, stream, before, digest, expected, classes), before, specs)

    for name, job in {"encode": encode, "apply": apply}.items():
        tracemalloc.start()
        job()
        figures[name] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    return figures | {"scratch_per_thread": scratch_mb()}


def scratch_mb() -> float:
    arrays = [value for value in vars(class_block._scratch).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays) / 1e6


def fuzzed(inputs: int) -> dict[str, int]:
    """Damaged and invented payloads: each must decode to changes inside its block or raise WireError."""
    chance, failures, done = np.random.default_rng(0), 0, 0
    while done < inputs:
        elements = int(chance.integers(1, 900))
        base = chance.integers(0, 2**16, elements).astype(np.uint16)
        new = np.where(chance.random(elements) < chance.random(), base + chance.integers(-3, 4, elements), base)
        classes = ClassMap(bytes(sorted({int(step) for step in chance.integers(1, 256, chance.integers(0, 8))})))
        payload = bytearray(class_block.encode(base, new.astype(np.uint16), classes)[0])
        for _ in range(200):
            done += 1
            failures += not survives(damaged(payload, chance), base, classes)
    return {"inputs": done, "failures": failures}


def damaged(payload: bytearray, chance: np.random.Generator) -> bytes:
    if chance.random() < 0.3 or not payload:
        return chance.bytes(int(chance.integers(0, 300)))
    wrong = bytearray(payload)
    for _ in range(int(chance.integers(1, 4))):
        wrong[int(chance.integers(len(wrong)))] ^= 1 << int(chance.integers(8))
    return bytes(wrong[: int(chance.integers(1, len(wrong) + 1))] if chance.random() < 0.2 else wrong)


def survives(payload: bytes, base: Bits, classes: ClassMap) -> bool:
    try:
        where, old, new = class_block.decode(payload, base, classes)
    except WireError:
        return True
    inside = where.size == 0 or (int(where.min()) >= 0 and int(where.max()) < base.size)
    return bool(
        inside and np.array_equal(base[where], old) and np.all(old != new) and np.unique(where).size == where.size
    )


# ---- for a person


def render(report: dict[str, Any]) -> str:
    rows = [
        "data set    changed  bound  "
        + "  ".join(f"{name:>11}" for name in ("ours", "one_class", *RIVALS))
        + "  enc   apply"
    ]
    for name, one in report["datasets"].items():
        bits = "  ".join(f"{one['bits_per_change'][code]:11.3f}" for code in ("ours", "one_class", *RIVALS))
        speed = f"{one['encode_over_memcpy']:.2f}  {one['apply_over_memcpy']:.2f}"
        rows.append(f"{name:<11} {one['changed_ratio']:7.2%}  {one['bound']:5.3f}  {bits}  {speed}")
    rows += [f"{name}: {value}" for name, value in report.items() if name != "datasets"]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
