"""What congestion control and idle windows cost plain TCP over an emulated long path. Linux, root.

    python -m benchmarks.wan_windows [--json] [--trials 3]

    congestion   cubic and BBR, 1 and 8 connections, 0.03 % loss, 48 MiB
    idle         8 MiB on new connections, and 8 MiB on the same ones after a pause, without loss: with the kernel's
                 default (windows are forgotten when idle) and without (tcp_slow_start_after_idle = 0)

Medians of seconds; `queue_dropped` are the packets that overflowed the queue of the path, its medians too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from aurora_p2p.testing.wan import Congestion, WanShape, open_wan
from benchmarks.wan_sockets import transfer

PATH = WanShape(150, 0.07)
LOSSY = replace(PATH, loss_ratio=0.0003)
LARGE, SMALL = 48 << 20, 8 << 20
STREAMS = (1, 8)
CONGESTION: tuple[Congestion, ...] = ("cubic", "bbr")


def congestion(trials: int) -> Iterator[tuple[str, Any]]:
    for name in CONGESTION:
        for streams in STREAMS:
            yield f"{name}.{streams}", measure(replace(LOSSY, congestion=name), streams, LARGE, trials)


def idle(trials: int) -> Iterator[tuple[str, Any]]:
    for forgets in (True, False):
        for streams in STREAMS:
            shape = replace(PATH, slow_start_after_idle=forgets)
            yield f"{'forgotten' if forgets else 'kept'}.{streams}", measure(shape, streams, SMALL, trials, warm=True)


def measure(shape: WanShape, streams: int, size: int, trials: int, *, warm: bool = False) -> dict[str, Any]:
    rounds, dropped = list[tuple[float, ...]](), list[int]()
    for _ in range(trials):
        with open_wan(shape) as wan:
            rounds.append(transfer(wan, streams=streams, size=size, warm=warm).seconds)
            dropped.append(wan.path_counts().queue_dropped[0])
    medians = [statistics.median(seconds) for seconds in zip(*rounds, strict=True)]
    return {"new": medians[0], **({"again": medians[1]} if warm else {}), "queue_dropped": statistics.median(dropped)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wan_windows", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    figures = {"congestion": dict(congestion(options.trials)), "idle": dict(idle(options.trials))}
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
