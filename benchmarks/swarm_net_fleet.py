"""Processes in the namespaces of a laboratory, and what one transfer between them costs.

    with Fleet.open(lab, folder, "ours") as fleet:
        trial = fleet.transfer(60_000_000)
        fleet.signal(3, signal.SIGKILL); fleet.start(3)

A trial counts from the moment the origin begins to publish to each node's word that everything is stored, durably.
CPU seconds are those of all processes (each data plane has a child), by the kernel's account.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from aurora_p2p.errors import ChildError
from aurora_p2p.testing.netlab import Lab
from aurora_p2p.wire.bulk import MAX_LANES
from benchmarks.swarm_net_node import Config

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
"""For nine interpreters to start and to link on a loaded machine."""
ANSWER_SECONDS = 20.0
STOP_SECONDS = 10.0

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """seconds: node -> from the beginning of the publication to completion; nodes that did not complete are missing."""

    size: int
    seconds: dict[int, float]
    expected: frozenset[int]
    origin_copies: float
    """Payload that the origin's process sent, over the artifact's size."""
    wire_copies: float
    """Bytes that left the origin's line, over the artifact's size: headers and control included."""
    cpu_seconds: float
    machine_busy: float
    """Share of all cores that was busy, with whatever: near 1, the CPU decided and not the network."""
    statuses: dict[int, Message]

    @property
    def complete(self) -> bool:
        return self.expected <= self.seconds.keys()

    @property
    def last(self) -> float:
        return max(self.seconds[node] for node in self.expected)

    @property
    def median(self) -> float:
        ordered = sorted(self.seconds[node] for node in self.expected)
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu_seconds / (self.size * len(self.seconds) / 1e9)


@dataclass
class Fleet:
    lab: Lab
    folder: Path
    policy: str
    wan_lanes: int = MAX_LANES
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    _messages: queue.Queue[tuple[int, Message]] = field(default_factory=queue.Queue)
    _readers: list[threading.Thread] = field(default_factory=list)
    _seq: int = 0

    @classmethod
    @contextmanager
    def open(cls, lab: Lab, folder: Path, policy: str, *, wan_lanes: int = MAX_LANES) -> Iterator[Fleet]:
        """Start a process in each namespace; returns once all are linked to all."""
        fleet = cls(lab, folder, policy, wan_lanes)
        try:
            for number in range(len(lab.nodes)):
                fleet.start(number)
            fleet.wait_for("ready", set(fleet.processes), START_SECONDS)
            fleet.wait_until_linked()
            yield fleet
        finally:
            fleet.close()

    def start(self, number: int) -> None:
        """A process for this node, the next one if there was one before; `wait_until_linked` afterwards."""
        addresses = [node.address for node in self.lab.nodes]
        lines = [node.access for node in self.lab.nodes]
        config = Config(number, str(self.folder), addresses, lines, self.policy, self.wan_lanes)
        path = self.folder / f"node{number}.json"
        path.write_bytes(msgspec.json.encode(config))
        module = "benchmarks.swarm_net_torrent" if self.is_torrent else "benchmarks.swarm_net_node"
        words = self.lab.nodes[number].command([sys.executable, "-m", module, str(path)])
        with (self.folder / f"node{number}.log").open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
            )
        self.processes[number] = process
        reader = threading.Thread(target=self._read, args=(number, process), daemon=True)
        reader.start()
        self._readers.append(reader)

    def close(self) -> None:
        """End every process and wait for it."""
        for number in self.processes:
            if number in self.stopped:
                self.signal(number, signal.SIGCONT)
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self.processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(STOP_SECONDS)
        self.processes.clear()

    def signal(self, number: int, which: signal.Signals) -> None:
        """To a node's process and its data plane at once, as when a machine dies or freezes."""
        for process in _tree(self.processes[number].pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(which)
        if which == signal.SIGSTOP:
            self.stopped.add(number)
        elif which in (signal.SIGCONT, signal.SIGKILL):
            self.stopped.discard(number)
        if which == signal.SIGKILL:
            self.processes[number].wait(STOP_SECONDS)

    def wait_until_linked(self) -> None:
        """Everybody that runs has a link to everybody that runs. Raises ChildError."""
        until = time.monotonic() + START_SECONDS
        numbers = set(self.processes) - self.stopped
        while any(one["linked"] < len(numbers) - 1 for one in self.statuses(0, numbers).values()):
            if time.monotonic() > until:
                raise ChildError("the data planes do not link", hint=f"their messages are in {self.folder}")
            time.sleep(0.2)

    @property
    def is_torrent(self) -> bool:
        return self.policy.startswith("libtorrent")

    def prepare(self, size: int) -> int:
        """Make the bytes of the next artifact where it begins; returns its sequence number."""
        self._seq += 1
        for group in ({0}, set(self.processes) - {0} - self.stopped if self.is_torrent else set()):
            for number in group:
                self.tell(number, {"do": "prepare", "seq": self._seq, "bytes": size})
            self.wait_for("prepared", group, ANSWER_SECONDS)
        return self._seq

    def publish(self, seq: int, seconds: float = 0.0) -> None:
        """Begin the publication of what is prepared, produced over so many seconds."""
        for number in set(self.processes) - self.stopped if self.is_torrent else {0}:
            self.tell(number, {"do": "publish", "seq": seq, "seconds": seconds})

    def transfer(
        self,
        size: int,
        *,
        seconds: float = 0.0,
        patience: float = 120.0,
        meanwhile: Callable[[Fleet, float], set[int]] | None = None,
    ) -> Trial:
        """Publish and wait until everybody has it, or for `patience`.

        meanwhile: called with the time of the publication; returns the nodes that it took away.
        """
        nodes = set(self.processes) - {0} - self.stopped
        seq = self.prepare(size)
        before, cpu = self.lab.counts()[0].up, self.cpu_seconds()
        psutil.cpu_percent()
        asked = time.monotonic()
        self.publish(seq, seconds)
        gone = meanwhile(self, asked) if meanwhile else set()
        expected = nodes - gone
        done = self._completions(seq, expected, asked + patience)
        began = self.wait_for("published", {0}, ANSWER_SECONDS)[0]["at"]
        cpu_seconds, busy = self.cpu_seconds() - cpu, psutil.cpu_percent() / 100
        wire = self.lab.counts()[0].up - before
        statuses = self.statuses(seq, expected | {0})
        if any(statuses[node]["digest"] != statuses[0]["digest"] for node in done.keys() & expected):
            raise ChildError("a node says it is complete and holds other bytes")
        for number in expected | {0}:
            self.tell(number, {"do": "retire", "seq": seq})
        sent = statuses[0]["passage"].get("sent_bytes", 0)
        took = {node: at - began for node, at in done.items() if node in expected}
        return Trial(size, took, frozenset(expected), sent / size, wire / size, cpu_seconds, busy, statuses)

    def _completions(self, seq: int, nodes: set[int], until: float) -> dict[int, float]:
        done: dict[int, float] = {}
        kept: list[tuple[int, Message]] = []
        while not nodes <= done.keys() and (left := until - time.monotonic()) > 0:
            self._require_alive(nodes)
            try:
                number, message = self._messages.get(timeout=min(left, 1.0))
            except queue.Empty:
                continue
            if message["said"] == "done":
                if message["seq"] == seq:
                    done[number] = message["at"]
            else:
                kept.append((number, message))
        for one in kept:
            self._messages.put(one)
        return done

    def cpu_seconds(self) -> float:
        """User and system time of all processes that run, so far."""
        total = 0.0
        for process in self.processes.values():
            for one in _tree(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def statuses(self, seq: int, numbers: set[int]) -> dict[int, Message]:
        for number in numbers:
            self.tell(number, {"do": "status", "seq": seq})
        return self.wait_for("status", numbers, ANSWER_SECONDS)

    def tell(self, number: int, command: Message) -> None:
        pipe = self.processes[number].stdin
        assert pipe is not None
        pipe.write(json.dumps(command) + "\n")
        pipe.flush()

    def wait_for(self, what: str, numbers: set[int], seconds: float) -> dict[int, Message]:
        """The next message of a kind from each of `numbers`; others are kept. Raises ChildError."""
        until = time.monotonic() + seconds
        found: dict[int, Message] = {}
        kept: list[tuple[int, Message]] = []
        while found.keys() != numbers:
            self._require_alive(numbers)
            try:
                number, message = self._messages.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() > until:
                    absent = sorted(numbers - found.keys())
                    raise ChildError(f"no {what!r} from {absent}", hint=f"see the logs in {self.folder}") from None
                continue
            if message["said"] == what and number in numbers and number not in found:
                found[number] = message
            else:
                kept.append((number, message))
        for one in kept:
            self._messages.put(one)
        return found

    def _require_alive(self, numbers: set[int]) -> None:
        dead = [number for number in numbers if self.processes[number].poll() is not None]
        if dead:
            raise ChildError(f"node {dead[0]} ended by itself", hint=f"see {self.folder}/node{dead[0]}.log")

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if self.processes.get(number) is process:
                    self._messages.put((number, json.loads(line)))


def _tree(pid: int) -> Sequence[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []
