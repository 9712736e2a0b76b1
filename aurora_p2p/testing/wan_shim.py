"""The process between the two ends of an emulated long path: moves IP packets from one TUN device to the other.

    TUN of end 0  --Pipe-->  TUN of end 1,  and back

Started by wan.py as `python -m aurora_p2p.testing.wan_shim --tuns A,B --shape RATE,DELAY,QUEUE`, with both descriptors
inherited. A byte on stdin asks for the counters (one line of JSON on stdout); the end of stdin ends it, and with it
the two devices.

The loop works in ticks: all that waits is read, all that is due is written, then it sleeps TICK_SECONDS. So a packet
is up to one tick late and never early; at 150 Mbit/s a tick moves about a dozen packets, which is how a network card
that coalesces its interrupts hands them over. `late_ms` is the worst lateness seen: the machine was busy then, and the
figures of that run deserve doubt.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aurora_p2p.testing.wan_pipe import Pipe

TICK_SECONDS = 0.001
"""Fewer wake-ups cost less CPU; 1 ms is under 2 % of a path of 70 ms."""
PACKET_BYTES = 2048
"""More than the devices' MTU of 1500."""
READS_PER_TURN = 256
"""Of one device before the other gets its turn; one turn a tick still takes 3 Gbit/s."""


@dataclass(slots=True)
class Shim:
    """Both directions between two TUN descriptors, which are set non-blocking."""

    tuns: tuple[int, int]
    pipes: tuple[Pipe, Pipe]
    """From the first to the second device, and back."""
    unwritten: int = 0
    """Packets that the far device refused: it was down."""
    late_seconds: float = 0.0

    def turn(self, *, now: float) -> None:
        """Read what waits, write what is due."""
        for tun, pipe in zip(self.tuns, self.pipes, strict=True):
            self._read(tun, pipe, now)
        for tun, pipe in zip(reversed(self.tuns), self.pipes, strict=True):
            self.late_seconds = max(self.late_seconds, now - pipe.next_deadline())
            for packet in pipe.due(now=now):
                try:
                    os.write(tun, packet)
                except OSError:
                    self.unwritten += 1

    def next_deadline(self) -> float:
        return min(pipe.next_deadline() for pipe in self.pipes)

    def counters(self) -> dict[str, object]:
        """For one line of JSON. cpu_seconds: of this process since its start, what the kernel did in its name too."""
        return {
            "packets": [pipe.passed for pipe in self.pipes],
            "bytes": [pipe.passed_bytes for pipe in self.pipes],
            "queue_dropped": [pipe.dropped for pipe in self.pipes],
            "unwritten": self.unwritten,
            "late_ms": self.late_seconds * 1000,
            "cpu_seconds": time.process_time(),
        }

    @staticmethod
    def _read(tun: int, pipe: Pipe, now: float) -> None:
        with contextlib.suppress(OSError):  # nothing more waits, or the device is down
            for _ in range(READS_PER_TURN):
                pipe.take(os.read(tun, PACKET_BYTES), now=now)


def serve(shim: Shim, control: int, answers: int) -> None:
    """Until the end of `control`."""
    for tun in shim.tuns:
        os.set_blocking(tun, False)
    while True:
        wait = shim.next_deadline() - time.monotonic()
        ready, _, _ = select.select([*shim.tuns, control], [], [], None if wait == float("inf") else max(wait, 0.0))
        if control in ready:
            if not os.read(control, 1):
                return
            os.write(answers, json.dumps(shim.counters()).encode() + b"\n")
        shim.turn(now=time.monotonic())
        time.sleep(TICK_SECONDS)


def first_in_line() -> None:
    """Run before ordinary processes, so that their work does not lengthen the path; where that is refused, without."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuns", required=True)
    parser.add_argument("--shape", required=True)
    options = parser.parse_args(arguments)
    first, second = (int(part) for part in options.tuns.split(","))
    rate, delay, queue = (float(part) for part in options.shape.split(","))
    shim = Shim((first, second), (Pipe(rate, delay, int(queue)), Pipe(rate, delay, int(queue))))
    first_in_line()
    gc.disable()  # packets make no cycles, and a pass over them would come at random moments
    serve(shim, sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
