"""How fast segments travel and what they cost, beside plain TLS sockets and libp2p, in one run over loopback.

    python -m benchmarks.bulk [--json] [--quick] [--rounds 3] [--megabytes 512] [--segment-kib 256] [--only ours,...]

Each way has two processes (benchmarks/bulk_ends.py) and takes turns with the other ways; medians of the rounds.
`ours` is from store to store: read, hashed, sent, received, hashed, spooled, moved into the other store, with all
processes of both sides; `exchange` is that with the exchange machine on top, which asks for every segment;
`plain_tls` and `libp2p` are from memory to memory and keep nothing. `tick_p99_ms` is how late a 10 ms tick of the
daemon's event loop comes during `exchange`, the worse of both ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.bulk_ends import Config

WAYS = ("ours", "plain_tls", "exchange", "libp2p")
LIBP2P_BYTES = 32 << 20
"""It takes a second for so little."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    size: int
    seconds: float
    cpu: float
    late: Sequence[float]

    @property
    def mb_per_s(self) -> float:
        return self.size / 1e6 / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu / (self.size / 1e9)

    @property
    def tick_p99_ms(self) -> float:
        return sorted(self.late)[int(len(self.late) * 0.99)] * 1000 if self.late else 0.0


class End:
    """One end of a transfer."""

    def __init__(self, way: str, end: str, config: Config) -> None:
        words = [sys.executable, "-m", "benchmarks.bulk_ends", way, end, msgspec.json.encode(config).decode()]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("an end of the transfer has died")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def finish(self) -> dict[str, Any]:
        """The sender's last word."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.hear()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)


def measure(way: str, size: int, segment_bytes: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="aurora-bulk-") as folder:
        config = Config(folder, size, segment_bytes)
        sender = End(way, "send", config)
        try:
            address = sender.hear()["address"]
            receiver = End(way, "receive", msgspec.structs.replace(config, address=address))
            try:
                began, received = sender.hear()["began"], receiver.hear()
                sent = sender.finish()
            finally:
                receiver.close()
        finally:
            sender.close()
    late = max(sent["late"], received["late"], key=lambda lags: sorted(lags)[int(len(lags) * 0.99)] if lags else 0.0)
    return Run(size, received["ended"] - began, sent["cpu"] + received["cpu"], late)


def report(runs: dict[str, list[Run]]) -> dict[str, Any]:
    speeds = {way: statistics.median(run.mb_per_s for run in done) for way, done in runs.items()}
    costs = {way: statistics.median(run.cpu_s_per_gb for run in done) for way, done in runs.items()}
    figures: dict[str, Any] = {"mb_per_s": speeds, "cpu_s_per_gb": costs, "rounds": max(map(len, runs.values()))}
    if {"ours", "plain_tls"} <= speeds.keys():
        turns = zip(runs["ours"], runs["plain_tls"], strict=True)
        figures["ours_over_plain_tls"] = statistics.median(ours.mb_per_s / plain.mb_per_s for ours, plain in turns)
    if "exchange" in runs:
        figures["tick_p99_ms"] = statistics.median(run.tick_p99_ms for run in runs["exchange"])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quick", action="store_true", help="one round, a quarter of the bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=512, help="bytes of one transfer, MiB; libp2p moves 32 MiB")
    parser.add_argument("--segment-kib", type=int, default=256)
    parser.add_argument("--only", default=",".join(WAYS), help="which ways, separated by commas")
    options = parser.parse_args()
    rounds, size = (1, options.megabytes << 18) if options.quick else (options.rounds, options.megabytes << 20)
    ways = options.only.split(",")
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            amount = min(size, LIBP2P_BYTES) if way == "libp2p" else size
            runs[way].append(measure(way, amount, options.segment_kib << 10))
    figures = report(runs)
    if options.json:
        print(json.dumps(figures))
    else:
        for way in ways:
            print(f"{way:10} {figures['mb_per_s'][way]:8.1f} MB/s {figures['cpu_s_per_gb'][way]:8.2f} CPU s/GB")
        print({name: value for name, value in figures.items() if isinstance(value, float)})


if __name__ == "__main__":
    main()
