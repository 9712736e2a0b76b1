"""`python -m benchmarks.codec [--json] [--quick]`: how small, how fast and how exact the delta codec is.

Sizes are of whole artifacts, framing and CRC included. Speeds are ratios to a memcpy of the same arrays beside it in
the same run (codec_speed.py says what is timed and how).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tracemalloc
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from aurora_p2p.delta.apply import stage, write
from aurora_p2p.delta.block import BlockReader
from aurora_p2p.delta.classes import block as class_block
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap, learn, sampled
from aurora_p2p.delta.coding import decode_block
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.errors import WireError
from aurora_p2p.types import TensorSpec
from benchmarks.codec_data import REAL, real_pair, synthetic_steps
from benchmarks.codec_device import device_figures
from benchmarks.codec_rivals import RIVALS, Pair, added, bound, python_varint_loop
from benchmarks.codec_speed import cpu, encoded_blocks, exhaust, speeds, thread_scaling, tiled
from benchmarks.codec_squash import squash_figures

PARAMETERS = 8.19e9
"""Of Qwen3-8B."""
QUICK_SECONDS, FULL_SECONDS = 1.5, 8.0
"""What the rounds of one data set's speeds take."""
PYTHON_ROUNDS = 7


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
    seconds = QUICK_SECONDS if quick else FULL_SECONDS
    datasets = {name: dataset(name, real_pair(name), seconds) for name in REAL}
    datasets["synthetic"] = dataset("synthetic", pair, seconds)
    say("thread scaling")
    scaling = thread_scaling(tiled(real_pair("rl1e-6")), seconds)
    report: dict[str, Any] = {"datasets": datasets, "thread_scaling": scaling}
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


def dataset(name: str, pair: Pair, seconds: float) -> dict[str, Any]:
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
        **speeds(tiled(pair), classes, seconds),
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


# ---- Python, exactness, memory


def over_python(pair: Pair) -> float:
    """Encoding speed over a Python loop that writes varints element by element."""
    classes = learn(sampled([pair]))
    ratios = []
    for _ in range(PYTHON_ROUNDS):
        ours = cpu(lambda: exhaust(encoded_blocks(pair, classes)))
        ratios.append(cpu(lambda: python_varint_loop(pair)) / ours)
    return statistics.median(ratios)


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
