"""Faults on purpose: named crash points, a disk that refuses or tears, sockets that break. Off unless asked for.

    reach("ledger.written")              a named point: the process may be killed, stopped, delayed, or get an error
    disk("write", path, piece, write)    before a disk operation: it may fail, or write a part and be killed
    wire("in", piece), connecting()      in the data plane: a connection may break, wait, be corrupted, be refused

UNARMED (the normal state: each call is one look at a global) --arm(), with AURORA_FAULTS set--> ARMED for good

Invariants: nothing happens without the environment variable AURORA_FAULTS, which is read once, by `arm`; a plan that
cannot be read ends the program with a UsageError instead of being ignored. A rule acts at its n-th hit in a process,
and with a folder of marks once among all processes that share the plan: the child that replaces a killed one lives.

Security: whoever can set a process's environment can end that process anyway; the plan reaches nobody else. No message,
file or configuration key arms anything. `aurora_p2p.testing.faults` builds plans and names every point.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from aurora_p2p.errors import UsageError

VARIABLE = "AURORA_FAULTS"
MAX_PLAN = 1 << 16
"""Bytes of a plan: far more than a test needs, and all that is parsed."""
MAX_DELAY_SECONDS = 3600.0

Process = Literal["", "node", "host", "bootstrap", "bulk", "engine", "fold", "trainer"]
"""Kind of process a rule is for; "" is any. Every program that is none of ours counts as a trainer."""
Operation = Literal["create", "write", "fsync", "rename"]
Direction = Literal["in", "out", "connect"]
Error = Literal["ENOSPC", "EIO", "EACCES", "EROFS", "EDQUOT"]
Hit = Annotated[int, Meta(ge=0, le=2**40)]
Delay = Annotated[float, Meta(ge=0, le=MAX_DELAY_SECONDS)]
Name = Annotated[str, Meta(max_length=200)]
Piece = bytes | bytearray | memoryview

_MODULES = {
    "aurora_p2p.net.bulk": "bulk",
    "aurora_p2p.engine.worker": "engine",
    "aurora_p2p.artifact.fold_worker": "fold",
}
_PROGRAMS = {"aurora-node": "node", "aurora-host": "host", "aurora-bootstrap": "bootstrap"}


class PointRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="point"):
    """At the hit-th time (from 1; 0: each) that `at` is reached: kill or stop this process, wait, or raise OSError."""

    at: Name
    action: Literal["kill", "stop", "delay", "fail"]
    hit: Hit = 1
    seconds: Delay = 0.0
    error: Error = "EIO"
    process: Process = ""


class DiskRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="disk"):
    """At the hit-th (0: each) operation on a path that matches the glob: raise OSError, or be killed in a write.

    A write that is torn, or that finds the disk full, leaves its first half, as real ones do.
    """

    operation: Operation
    path: Name = "*"
    action: Literal["fail", "tear"] = "fail"
    hit: Hit = 1
    error: Error = "ENOSPC"
    process: Process = ""


class WireRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="wire"):
    """In the bulk child, once `after` bytes have gone in that direction (connect: after so many connects).

    drop: the connection breaks; delay: `seconds` before each further piece; corrupt: one byte that arrived is changed
    (direction "in" only); refuse: connects fail. hit 0 repeats: drop and corrupt act again after each `after` bytes.
    """

    direction: Direction
    action: Literal["drop", "delay", "corrupt", "refuse"]
    after: Hit = 0
    hit: Annotated[int, Meta(ge=0, le=1)] = 1
    seconds: Delay = 0.0
    process: Process = ""


Rule = PointRule | DiskRule | WireRule


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """marks: an existing folder where each rule that acts leaves a file named by its place in `rules`: a JSON Mark.

    gated: a rule is at rest, and counts nothing, until the folder holds a file of that name and ".go": one process can
    be run into one fault after the other, each at a chosen moment.
    """

    rules: Annotated[tuple[Rule, ...], Meta(max_length=1024)]
    marks: Annotated[str, Meta(max_length=4096)] = ""
    gated: bool = False


class Mark(msgspec.Struct, frozen=True):
    """What a rule that acted left behind. boottime: CLOCK_BOOTTIME seconds."""

    rule: int
    process: str
    pid: int
    boottime: float


class Armed:
    """A plan at work in this process. Any thread may call."""

    def __init__(self, plan: Plan, kind: str) -> None:
        self._plan, self._kind = plan, kind
        self._lock = threading.Lock()
        self._counts = [0] * len(plan.rules)
        self._acted: set[int] = set()
        mine = [(number, rule) for number, rule in enumerate(plan.rules) if rule.process in ("", kind)]
        self._points = [(number, rule) for number, rule in mine if isinstance(rule, PointRule)]
        self._disk = [(number, rule) for number, rule in mine if isinstance(rule, DiskRule)]
        self._wire = [(number, rule) for number, rule in mine if isinstance(rule, WireRule)]

    @property
    def concerned(self) -> bool:
        """Whether any rule is for this kind of process."""
        return bool(self._points or self._disk or self._wire)

    def reach(self, point: str) -> None:
        for number, rule in self._points:
            if rule.at == point and self._due(number, rule.hit):
                _act(rule)

    def disk(self, operation: Operation, path: Path, piece: Piece, write: Callable[[Piece], object] | None) -> None:
        for number, rule in self._disk:
            if rule.operation != operation or not fnmatch.fnmatch(str(path), rule.path):
                continue
            if not self._due(number, rule.hit):
                continue
            full = rule.error in ("ENOSPC", "EDQUOT")
            if write is not None and (full or rule.action == "tear"):
                write(memoryview(piece)[: len(piece) // 2])
            if rule.action == "tear":
                _kill()
            raise _error(rule.error, str(path))

    def wire(self, direction: Direction, piece: memoryview) -> None:
        """Count a piece that moved; act on it."""
        for number, rule in self._wire:
            if rule.direction != direction or not self._passed(number, rule, len(piece)):
                continue
            match rule.action:
                case "drop" | "refuse":
                    raise ConnectionResetError(errno.ECONNRESET, "broken on purpose")
                case "delay":
                    time.sleep(rule.seconds)
                case "corrupt" if not piece.readonly:
                    piece[len(piece) // 2] ^= 0x40

    def _due(self, number: int, hit: int) -> bool:
        """Count one hit of a rule; whether it acts now."""
        if not self._open(number):
            return False
        with self._lock:
            self._counts[number] += 1
            due = hit in (0, self._counts[number])
        return due and (self._leave_mark(number) or hit == 0)

    def _open(self, number: int) -> bool:
        return not self._plan.gated or os.path.exists(os.path.join(self._plan.marks, f"{number}.go"))

    def _passed(self, number: int, rule: WireRule, size: int) -> bool:
        if not self._open(number):
            return False
        with self._lock:
            before = self._counts[number]
            self._counts[number] += size
            if self._counts[number] <= rule.after:
                return False
            if rule.action not in ("delay", "refuse"):  # those last; these act at one byte
                if rule.hit == 0:
                    self._counts[number] = 0
                elif before > rule.after:
                    return False
        return self._leave_mark(number) or rule.hit == 0 or rule.action in ("delay", "refuse")

    def _leave_mark(self, number: int) -> bool:
        """Whether this rule acts for the first time, here and in all processes that share the marks."""
        with self._lock:
            first = number not in self._acted
            self._acted.add(number)
        if not first or not self._plan.marks:
            return first
        mark = Mark(number, self._kind, os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME))
        try:
            with open(os.path.join(self._plan.marks, str(number)), "xb", buffering=0) as file:
                file.write(msgspec.json.encode(mark))
        except FileExistsError:
            return False
        return True


_armed: Armed | None = None


def reach(point: str) -> None:
    """Here something has just changed hands. Raises OSError only when armed to."""
    if _armed is not None:
        _armed.reach(point)


def disk(operation: Operation, path: Path, piece: Piece = b"", write: Callable[[Piece], object] | None = None) -> None:
    """Just before an operation on `path`. piece and write: what will be written, and how (for a torn write).

    Raises OSError only when armed to.
    """
    if _armed is not None:
        _armed.disk(operation, path, piece, write)


def wire(direction: Direction, piece: memoryview) -> None:
    """A piece just received ("in", may be changed in place) or about to be sent ("out").

    Raises ConnectionResetError only when armed to.
    """
    if _armed is not None:
        _armed.wire(direction, piece)


def connecting() -> None:
    """Just before a connect of the data plane. Raises ConnectionResetError only when armed to."""
    if _armed is not None:
        _armed.wire("connect", _ONE)


def arm(environment: Mapping[str, str] = os.environ, words: Sequence[str] | None = None) -> None:
    """Take the plan from the environment, if there is one; again is nothing. Warns on stderr.

    words: this process's command line, which tells its kind. Raises UsageError for a plan that cannot be read.
    """
    global _armed
    text = environment.get(VARIABLE)
    if not text or _armed is not None:
        return
    plan, kind = read_plan(text), process_kind(sys.orig_argv if words is None else words)
    armed = Armed(plan, kind)
    if armed.concerned:
        print(f"warning: {VARIABLE} is set: this {kind} process (pid {os.getpid()}) fails on purpose", file=sys.stderr)
        _armed = armed


def read_plan(text: str) -> Plan:
    """Raises UsageError, saying what is wrong with it."""
    try:
        if len(text) > MAX_PLAN:
            raise msgspec.ValidationError(f"longer than {MAX_PLAN} bytes")
        return msgspec.json.decode(text, type=Plan)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError(
            f"{VARIABLE} holds no plan: {error}", hint="build it with aurora_p2p.testing.faults, or unset the variable"
        ) from error


def process_kind(words: Sequence[str]) -> str:
    """What a command line runs: node, host, bootstrap, bulk, engine; anything else is a trainer."""
    for word in words[1:]:
        if kind := _MODULES.get(word) or _PROGRAMS.get(os.path.basename(word)):
            return kind
    return "trainer"


def _act(rule: PointRule) -> None:
    match rule.action:
        case "kill":
            _kill()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(rule.seconds)
        case "fail":
            raise _error(rule.error, rule.at)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _error(name: str, where: str) -> OSError:
    number: int = getattr(errno, name)
    return OSError(number, os.strerror(number), where)


_ONE = memoryview(b"\0")
