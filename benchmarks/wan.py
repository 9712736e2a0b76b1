"""One artifact over an emulated long path, by 1, 4 and 8 parallel connections. Linux, root.

    python -m benchmarks.wan [--json] [--path light|middle|heavy|all] [--trials 3] [--megabytes 48] [--streams 1,4,8]

Two data planes as daemons run them (driver, bulk child, store), one at each end of aurora_p2p.testing.wan, in two
regions of one roster. `seconds` is from the beginning of the publication to the word of the other end that everything
is stored, durably: the median of the trials, each with new processes and new connections; `again_seconds` is the next
artifact over the same ones. Beside them, in the same run, `plain` sends as many bytes through as many plain TCP
sockets; with 8, one of ours carries control frames only.

`over_bound` divides by bytes / (payload rate of the path) + half an RTT, when the last byte of a full path would come.
`gain` is seconds with the fewest connections over those with the most. The process that emulates the path must stay
under MAX_SHIM_CPU of a core, or the figures are not printed: it would be the path.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aurora_p2p.errors import AuroraError, ChildError
from aurora_p2p.testing.netlab import LabNode
from aurora_p2p.testing.wan import Wan, WanShape, open_wan
from benchmarks import wan_sockets
from benchmarks.swarm_net_fleet import Fleet

RTT_SECONDS = 0.07
PATHS = {
    "light": WanShape(150, RTT_SECONDS, loss_ratio=0.0001),
    "middle": WanShape(150, RTT_SECONDS, loss_ratio=0.0003),
    "heavy": WanShape(100, RTT_SECONDS, loss_ratio=0.001),
}
MAX_SHIM_CPU = 0.5
PATIENCE_SECONDS = 170.0
"""One connection at 0.1 % loss takes 50 s for 48 MiB."""
LANES_SECONDS = 20.0
"""For all connections of a link to open: about 4 RTT each, one after the other."""
LANES_REST_SECONDS = 1.0
"""For the handshake of the last connection, which is established before it is proved."""
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Transfer:
    seconds: float
    shim_cpu_ratio: float
    """CPU seconds of the process in the middle per second of the transfer."""
    late_ms: float
    lost: int
    queue_dropped: int
    again_seconds: float | None = None
    """The next artifact over the same connections, a moment later."""


def ours(shape: WanShape, streams: int, size: int) -> Transfer:
    """An artifact between two data planes."""
    with (
        open_wan(shape) as wan,
        tempfile.TemporaryDirectory(prefix="aurora-wan-") as folder,
        Fleet.open(wan, Path(folder), "ours", wan_lanes=streams) as fleet,
    ):
        wait_for_lanes(fleet, streams)

        def transfer() -> float:
            trial = fleet.transfer(size, patience=PATIENCE_SECONDS)
            if not trial.complete:
                raise ChildError(f"the artifact did not arrive within {PATIENCE_SECONDS} s")
            return trial.last

        first = watched(wan, transfer)
        return replace(first, again_seconds=transfer())


def wait_for_lanes(fleet: Fleet, streams: int) -> None:
    """Raises ChildError when the connections do not open."""
    until = time.monotonic() + LANES_SECONDS
    while established(fleet.lab.nodes[0]) != streams:
        if time.monotonic() > until:
            raise ChildError(f"the link has not opened {streams} connections", hint=f"see the logs in {fleet.folder}")
        time.sleep(LOOK_SECONDS)
    time.sleep(LANES_REST_SECONDS)


def established(node: LabNode) -> int:
    """TCP connections of a namespace, by the kernel's list; column `st` 01 is TCP_ESTABLISHED (net/tcp_states.h)."""
    listed = subprocess.run(node.command(["cat", "/proc/net/tcp"]), stdout=subprocess.PIPE, text=True, check=True)
    return sum(line.split()[3] == "01" for line in listed.stdout.splitlines()[1:])


def plain(shape: WanShape, streams: int, size: int) -> Transfer:
    """As many bytes between two programs of plain sockets."""
    with open_wan(shape) as wan:

        def transfer() -> float:
            passage = wan_sockets.transfer(wan, streams=streams, size=size)
            assert passage.sent_digest == passage.received_digest
            return passage.seconds[0]

        return watched(wan, transfer)


def watched(wan: Wan, transfer: Callable[[], float]) -> Transfer:
    """What a transfer took, and what the path did meanwhile."""
    before = wan.path_counts()
    seconds = transfer()
    after = wan.path_counts()
    return Transfer(
        seconds,
        (after.cpu_seconds - before.cpu_seconds) / seconds,
        after.late_ms,
        sum(after.lost) - sum(before.lost),
        sum(after.queue_dropped) - sum(before.queue_dropped),
    )


def measure(shape: WanShape, streams: Sequence[int], size: int, trials: int) -> dict[str, Any]:
    """Ours and plain sockets take turns, and so do the numbers of connections."""
    bound = size / shape.payload_bytes_per_s + shape.rtt_seconds / 2
    taken: dict[str, dict[int, list[Transfer]]] = {"ours": {n: [] for n in streams}, "plain": {n: [] for n in streams}}
    for _ in range(trials):
        for number in streams:
            taken["ours"][number].append(ours(shape, number, size))
            taken["plain"][number].append(plain(shape, number, size))
            last = {way: round(by_number[number][-1].seconds, 2) for way, by_number in taken.items()}
            print(f"{number} connections: {last}", file=sys.stderr, flush=True)  # what a killed run has measured
    figures = {
        way: {str(number): figure(done, bound) for number, done in by_number.items()}
        for way, by_number in taken.items()
    }
    few, many = str(min(streams)), str(max(streams))
    return {
        "path": asdict(shape) | {"queue_bytes": shape.queue_bytes or shape.product_bytes},
        "bytes": size,
        "bound_seconds": bound,
        "streams": figures["ours"],
        "plain": figures["plain"],
        "gain": figures["ours"][few]["seconds"] / figures["ours"][many]["seconds"],
        "plain_gain": figures["plain"][few]["seconds"] / figures["plain"][many]["seconds"],
        "shim_cpu_ratio": max(one["shim_cpu_ratio"] for way in figures.values() for one in way.values()),
        "late_ms": max(one["late_ms"] for way in figures.values() for one in way.values()),
    }


def figure(done: Sequence[Transfer], bound: float) -> dict[str, Any]:
    seconds = statistics.median(one.seconds for one in done)
    again = [one.again_seconds for one in done if one.again_seconds is not None]
    return {
        "seconds": seconds,
        "over_bound": seconds / bound,
        "all_seconds": [round(one.seconds, 3) for one in done],
        **({"again_seconds": statistics.median(again)} if again else {}),
        "shim_cpu_ratio": max(one.shim_cpu_ratio for one in done),
        "late_ms": max(one.late_ms for one in done),
        "lost": [one.lost for one in done],
        "queue_dropped": [one.queue_dropped for one in done],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wan", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--path", choices=(*PATHS, "all"), default="light", help="how much is lost: 0.01, 0.03, 0.1 %%")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=48)
    parser.add_argument("--streams", default="1,4,8", help="numbers of connections")
    options = parser.parse_args()
    streams = [int(number) for number in options.streams.split(",")]
    names = list(PATHS) if options.path == "all" else [options.path]
    try:
        paths = {name: measure(PATHS[name], streams, options.megabytes << 20, options.trials) for name in names}
    except AuroraError as error:
        print(f"{error}\n{error.hint}".strip(), file=sys.stderr)
        raise SystemExit(error.exit_status) from None
    worst = max(one["shim_cpu_ratio"] for one in paths.values())
    if worst >= MAX_SHIM_CPU:
        raise SystemExit(f"the process that emulates the path took {worst:.2f} of a core: this machine is too slow")
    print(json.dumps({**paths[names[0]], "paths": paths}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
