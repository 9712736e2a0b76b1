"""How fast the delta codec is beside a memcpy of the same checkpoint, on one thread and on two.

Every figure is a median of ratios, and each ratio is of neighbours in time: a job stands between two memcpys, and their
mean over its own time is one ratio. A processor shared with others is another thing when they work: arithmetic takes up
to twice as long while a memcpy, which waits for memory, takes as long as before, or the other way round. So beside
each memcpy a fixed piece of arithmetic is timed as a second gauge, and a ratio counts where both gauges, before and
after the job, were within DISTURBED of their best in that run: what is measured is the codec on a core and a memory of
its own. `undisturbed` says how many ratios that were, of `rounds`; `every_round` is the median without that choice,
`spread` the middle half of those that count.

One thread: CPU time. encode is scan, coding, framing and CRC; apply is decoding each block and writing it in place at
once; stage_then_write writes only when all are decoded, as an engine does; digest is beside. A memcpy reads 64 MiB and
writes 64 MiB, encoding reads 64 MiB twice, applying reads 64 MiB and writes the lines that change; what a copy left
in the cache to be written back is paid by what comes next. All pages were touched and all kernels run before. Two
threads: wall time, both with a half of the blocks over one with all of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from aurora_p2p.delta.block import BlockReader, RawBlock
from aurora_p2p.delta.classes.map import ClassMap, learn, sampled
from aurora_p2p.delta.coding import decode_block, encode_block
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta
from aurora_p2p.delta.tensors import Bits, blocks
from aurora_p2p.delta.touch import write_at
from aurora_p2p.types import TensorSpec
from benchmarks.codec_rivals import Pair

TIMED_ELEMENTS = 1 << 25
"""Real steps are tiled to this size for timing: 64 MiB, beyond any second-level cache."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 61
"""As many rounds as fit in the time given, within these: dense steps take a second a round, sparse ones a tenth."""
DISTURBED = 1.15
"""How much slower than its best a gauge may be: quiet machines stay within 1.1."""
LEAST_COUNTED = 5
"""Ratios that count in any case, the least disturbed first."""
GAUGE_BYTES, GAUGE_TIMES = 1 << 18, 8
"""BLAKE3 of a buffer that a second-level cache holds: vector arithmetic, half a millisecond."""

Job = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Gauges:
    """CPU seconds of a memcpy and of the arithmetic, one right after the other."""

    copy: float
    arithmetic: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One ratio, and the gauges before and after it."""

    ratio: float
    before: Gauges
    after: Gauges


def speeds(pair: Pair, classes: ClassMap, seconds: float) -> dict[str, Any]:
    """NAME_over_memcpy of every job, from rounds that take about so many seconds, and their spread."""
    base, new = pair
    spec, target, held = TensorSpec("all", "BF16", base.shape), base.copy(), base.copy()
    coded = read_back(encoded_blocks(pair, classes))
    digest = full_digest((spec,), {"all": base})

    def stage_then_write() -> None:
        for change in [decode_block(one, spec, held, classes) for one in coded]:
            write_at(held, change.positions, change.new)

    jobs: dict[str, Job] = {
        "encode": lambda: exhaust(encoded_blocks(pair, classes)),
        "encode_with_digest": lambda: exhaust(encode_delta((spec,), {"all": base}, {"all": new}, digest, classes)),
        "apply": lambda: apply(coded, spec, held, classes),
        "stage_then_write": stage_then_write,
        "digest": lambda: full_digest((spec,), {"all": base}),
    }
    samples = between(lambda: np.copyto(target, base), lambda: np.copyto(held, base), jobs, seconds)
    best = best_of(itertools.chain.from_iterable(samples.values()))
    counted = {name: chosen(found, best) for name, found in samples.items()}
    apply(coded, spec, held, classes)
    assert np.array_equal(held, new)
    return {
        **{f"{name}_over_memcpy": statistics.median(one.ratios) for name, one in counted.items()},
        "memcpy_gb_per_s": base.nbytes / best.copy / 1e9,
        "rounds": len(samples["encode"]),
        "undisturbed": {name: one.undisturbed for name, one in counted.items()},
        "every_round": {name: statistics.median(one.ratio for one in found) for name, found in samples.items()},
        "spread": {name: middle_half(one.ratios) for name, one in counted.items()},
    }


def between(copy: Job, renew: Job, jobs: Mapping[str, Job], seconds: float) -> dict[str, list[Sample]]:
    """Samples of each job, each between two copies; `renew` comes after each copy, untimed."""
    samples: dict[str, list[Sample]] = {name: [] for name in jobs}
    buffer = bytes(GAUGE_BYTES)
    for job in jobs.values():  # the first time pages are touched and buffers made
        job()
        renew()
    for _ in rounds(seconds):
        before = gauges(copy, buffer)
        for name, job in jobs.items():
            renew()
            taken = cpu(job)
            after = gauges(copy, buffer)
            samples[name].append(Sample((before.copy + after.copy) / 2 / taken, before, after))
            before = after
    renew()
    return samples


def gauges(copy: Job, buffer: bytes) -> Gauges:
    return Gauges(cpu(copy), cpu(lambda: [blake3(buffer).digest() for _ in range(GAUGE_TIMES)]))


@dataclass(frozen=True, slots=True)
class Chosen:
    """Of one job: the ratios that count, and how many of them were undisturbed."""

    ratios: Sequence[float]
    undisturbed: int


def chosen(found: Sequence[Sample], best: Gauges) -> Chosen:
    def disturbance(one: Sample) -> float:
        return max(max(gauge.copy / best.copy, gauge.arithmetic / best.arithmetic) for gauge in (one.before, one.after))

    ordered = sorted(found, key=disturbance)
    quiet = sum(disturbance(one) <= DISTURBED for one in ordered)
    return Chosen([one.ratio for one in ordered[: max(quiet, LEAST_COUNTED)]], quiet)


def best_of(samples: Iterable[Sample]) -> Gauges:
    seen = [gauge for one in samples for gauge in (one.before, one.after)]
    return Gauges(min(gauge.copy for gauge in seen), min(gauge.arithmetic for gauge in seen))


def rounds(seconds: float) -> Iterator[int]:
    """LEAST_ROUNDS and further ones until the time is up, or MOST_ROUNDS."""
    end = time.perf_counter() + seconds
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() > end:
            return
        yield number


def middle_half(found: Sequence[float]) -> list[float]:
    low, _, high = statistics.quantiles(found, n=4)
    return [low, high]


# ---- two threads


def thread_scaling(pair: Pair, seconds: float) -> dict[str, Any]:
    """What a second thread gives, over what it gives to memcpy in the same round."""
    base, _ = pair
    classes, spec = learn(sampled([pair])), TensorSpec("all", "BF16", base.shape)
    target, held, spans = base.copy(), base.copy(), list(blocks(base.size))
    coded = read_back(encoded_blocks(pair, classes))

    def copy(part: Sequence[tuple[int, int]]) -> None:
        for offset, length in part:
            target[offset : offset + length] = base[offset : offset + length]

    jobs: dict[str, tuple[Sequence[Any], Callable[[Any], None]]] = {
        "memcpy": (spans, copy),
        "encode": (spans, lambda part: exhaust(encoded(part, pair, classes))),
        "apply": (coded, lambda part: apply(part, spec, held, classes)),
    }
    gains: dict[str, list[float]] = {name: [] for name in jobs}
    with ThreadPoolExecutor(2) as pool:
        for number in rounds(seconds):
            for name, (items, job) in jobs.items():
                gain = second_thread(pool, items, job, lambda: np.copyto(held, base))
                if number:  # the first round makes each thread's buffers
                    gains[name].append(gain)
    over = {
        name: [gain / copied for gain, copied in zip(gains[name], gains["memcpy"], strict=True)]
        for name in ("encode", "apply")
    }
    return {
        **{name: statistics.median(found) for name, found in over.items()},
        "memcpy_gain": statistics.median(gains["memcpy"]),
        "spread": {name: middle_half(found) for name, found in over.items()},
    }


def second_thread(pool: ThreadPoolExecutor, items: Sequence[Any], job: Callable[[Any], None], prepare: Job) -> float:
    """Wall time of one thread of the pool for all items over that of both for a half each."""
    taken = []
    for parts in ([items], [items[: len(items) // 2], items[len(items) // 2 :]]):
        prepare()
        started = time.perf_counter()
        list(pool.map(job, parts))
        taken.append(time.perf_counter() - started)
    return taken[0] / taken[1]


# ---- what is timed


def encoded_blocks(pair: Pair, classes: ClassMap) -> Iterator[bytes]:
    return encoded(blocks(pair[0].size), pair, classes)


def encoded(spans: Iterable[tuple[int, int]], pair: Pair, classes: ClassMap) -> Iterator[bytes]:
    base, new = pair
    for offset, length in spans:
        span = slice(offset, offset + length)
        yield encode_block(0, offset, base[span], new[span], classes)[0]


def read_back(stream: Iterable[bytes]) -> list[RawBlock]:
    reader = BlockReader()
    return [block for piece in stream for block in reader.feed(piece)]


def apply(coded: Iterable[RawBlock], spec: TensorSpec, held: Bits, classes: ClassMap) -> None:
    for one in coded:
        change = decode_block(one, spec, held, classes)
        write_at(held, change.positions, change.new)


def exhaust(pieces: Iterable[bytes]) -> None:
    for _ in pieces:
        pass


def cpu(job: Job) -> float:
    """CPU seconds of this thread."""
    started = time.thread_time()
    job()
    return time.thread_time() - started


def tiled(pair: Pair) -> Pair:
    """The pair repeated up to TIMED_ELEMENTS."""
    times = max(1, TIMED_ELEMENTS // pair[0].size)
    return np.tile(pair[0], times), np.tile(pair[1], times)
