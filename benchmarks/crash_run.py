"""One fleet and the cases it has to live through.

    armed, at rest --release--> the fault acts (a mark appears) --heal--> recovering --> recovered | stuck

Every program is started with the rules of all its coming cases, gated: starting a program again costs seconds, so the
process that has just recovered is the one that runs into the next fault.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aurora_p2p.host.programs import Program
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import Mark, Rule
from aurora_p2p.testing.faults import Faults, kill, marks_in, release
from benchmarks.crash_books import Books, LogReader
from benchmarks.crash_cases import Case
from benchmarks.fleet import PATIENCE_SECONDS, Fleet, WrongWeights
from benchmarks.fleet_model import digest_at

REACH_SECONDS = 40.0
"""For a point to be reached: the rarest needs a lease to expire first."""
STUCK_SECONDS = 60.0
STOPPED_SECONDS = 6.0
"""From SIGSTOP to SIGCONT: longer than a lease, so that others do the work of a node that stands still."""
POLL_SECONDS = 0.1
AHEAD_CASES = 300
"""Coming cases that a process is armed with: what fits into its environment."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """verdict: recovered, stuck, died (a process that was no victim), unreached. recovery: seconds."""

    case: Case
    verdict: str
    recovery: float | None = None
    detail: tuple[str, ...] = ()

    def as_failure(self) -> dict[str, Any]:
        case = self.case
        return {
            "verdict": self.verdict,
            "fault": case.fault.name,
            "program": case.program,
            "hit": case.hit,
            "seed": case.seed,
            "detail": list(self.detail),
        }


@dataclass(slots=True)
class Armament:
    """What one process of a program can be told to run into."""

    marks: Path
    places: dict[int, int]
    """Number of a case -> place of its rule in the plan."""


@dataclass
class CrashRun:
    fleet: Fleet
    cases: Sequence[Case]
    books: Books = field(default_factory=Books)
    wrong: list[str] = field(default_factory=list)
    _armed: dict[str, Armament] = field(default_factory=dict)
    _logs: dict[str, LogReader] = field(default_factory=dict)
    _peers: dict[str, str] = field(default_factory=dict)
    _stepped: int = -1
    """The newest version that the trainer completed."""
    _began: int = 0
    """Where in `cases` the run stands."""

    @classmethod
    @contextmanager
    def open(cls, folder: Path, cases: Sequence[Case], nodes: int) -> Iterator[CrashRun]:
        folder.mkdir(parents=True)
        with Fleet.open(folder, nodes=nodes) as fleet:
            run = cls(fleet, cases)
            for name in fleet.nodes:
                run._peers[name] = str(fleet.running[name].status()["peer"])
                run._logs[name] = LogReader(fleet.running[name].home / "logs" / "node.log")
            for name in ("host", "trainer", *fleet.nodes):
                run._restart(name)
            run._recover(boottime(), PATIENCE_SECONDS)
            yield run

    # ---- one case

    def carry_out(self, case: Case) -> Outcome:
        """Break, heal, wait. Whatever it finds, the fleet is whole afterwards."""
        self._began = case.number
        try:
            marks = self._break(case)
            if marks is None:
                self._repair()
                return Outcome(case, "unreached")
            started = self._heal(case, marks)
            recovered = self._recover(started, STUCK_SECONDS)
        except Died as died:
            self._repair()
            return Outcome(case, "died", None, (str(died),))
        if recovered is None:
            detail = self._describe()
            self._repair()
            return Outcome(case, "stuck", None, detail)
        return Outcome(case, "recovered", recovered)

    def _break(self, case: Case) -> list[Mark] | None:
        """Let the rules go and wait until each has acted; None when one has not."""
        if case.fault.trigger == "start":
            self._kill(case.program)
            environment = self._environment(case.program)
            self._release(case.program, case)
            self.fleet.start(case.program, environment)
        else:
            for program, _ in participants(case):
                self._release(program, case)
        give_up = boottime() + REACH_SECONDS
        waiting = [program for program, _ in participants(case)]
        marks: list[Mark] = []
        while waiting:
            if boottime() > give_up:
                return None
            self._look(spare={program for program, _ in participants(case)})
            for program in list(waiting):
                if mark := self._mark_of(program, case):
                    marks.append(mark)
                    waiting.remove(program)
            _pause(POLL_SECONDS / 5)
        return marks

    def _heal(self, case: Case, marks: Sequence[Mark]) -> float:
        """Do what an owner's machine does; returns when recovery begins to count."""
        match case.fault.healing:
            case "restart":
                for program, _ in participants(case):
                    self._wait_for_end(program)
                started = boottime()
                for program, _ in participants(case):
                    self._restart(program)
                return started
            case "continue":
                _pause(STOPPED_SECONDS)
                started = boottime()
                os.kill(marks[-1].pid, signal.SIGCONT)
                return started
            case _:
                return marks[-1].boottime

    def _wait_for_end(self, name: str) -> None:
        try:
            self.fleet.running[name].process.wait(REACH_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Died(f"{name} should have died, and lives") from error

    def _recover(self, started: float, seconds: float) -> float | None:
        """Seconds until the swarm is whole: a step completed since, and every node at its version, audited."""
        self._look()
        before = self.fleet.host_version()
        while before < 0 and boottime() < started + seconds:
            self._look()
            _pause(POLL_SECONDS)
            before = self.fleet.host_version()
        behind = list(self.fleet.nodes)
        while boottime() < started + seconds:
            self._look()
            if self._stepped > before:
                try:
                    behind = [name for name in behind if not self.fleet.serves(name, before + 1)]
                except WrongWeights as error:
                    self.wrong.append(str(error))
                    return None
            if not behind:
                self.read_logs()
                return boottime() - started
            _pause(POLL_SECONDS)
        return None

    # ---- programs

    def _look(self, spare: set[str] | frozenset[str] = frozenset()) -> None:
        """Take the trainer's news. Raises Died when a program has ended that should not."""
        for event in self.fleet.running["trainer"].news():
            if event["event"] == "taken":
                self.books.taken(event)
            elif event["event"] == "step":
                self._stepped = max(self._stepped, int(event["version"]))
                if event["digest"] != digest_at(int(event["version"])):
                    self.wrong.append(f"the host has published version {event['version']} with another digest")
        for name, program in self.fleet.running.items():
            if name not in spare and program.process.poll() is not None:
                raise Died(f"{name} has ended with status {program.process.returncode}: {program.tail()}")

    def _repair(self) -> None:
        """Start everything that has a case anew: whatever is wrong ends here."""
        for name in ("host", "trainer", *self.fleet.nodes):
            self._restart(name)
        with suppress(Died):
            self._recover(boottime(), PATIENCE_SECONDS)

    def _kill(self, name: str) -> None:
        program = self.fleet.running[name]
        program.signal(signal.SIGKILL)
        program.process.wait()
        if name == "trainer":
            self._drain(program)

    def _drain(self, program: Program) -> None:
        for event in program.news():
            if event["event"] == "taken":
                self.books.taken(event)

    def _restart(self, name: str) -> None:
        self._kill(name)
        self.fleet.start(name, self._environment(name))

    def _environment(self, name: str) -> dict[str, str]:
        """Arm a program's next process with its coming cases, all at rest."""
        rules = [
            (case, rule)
            for case in self.cases
            for program, rule in participants(case)
            if program == name and case.number >= self._began
        ][:AHEAD_CASES]
        marks = self.fleet.programs.folder / f"marks-{name}-{boottime():.6f}"
        marks.mkdir()
        self._armed[name] = Armament(marks, {case.number: place for place, (case, _) in enumerate(rules)})
        return Faults(tuple(rule for _, rule in rules)).environment(marks, gated=True)

    def _release(self, program: str, case: Case) -> None:
        armament = self._armed[program]
        release(armament.marks, armament.places[case.number])

    def _mark_of(self, program: str, case: Case) -> Mark | None:
        armament = self._armed[program]
        place = armament.places[case.number]
        return next((mark for mark in marks_in(armament.marks) if mark.rule == place), None)

    # ---- books

    def read_logs(self) -> None:
        """Enter what nodes were told since the last time."""
        for name, log in self._logs.items():
            for event in log.read():
                if event.get("event") == "receipts":
                    self.books.receipt(self._peers[name], event)

    def findings(self) -> dict[str, list[str]]:
        books = self.books
        return {
            "wrong_digests": self.wrong,
            "lost": books.lost,
            "doubled": books.doubled,
            "stale": books.stale,
            "receipts": [str(books.receipts)],
        }

    def _describe(self) -> tuple[str, ...]:
        """Where each program stands, one line each."""
        lines = [f"trainer: completed version {self._stepped}"]
        for name in ("host", *self.fleet.nodes):
            status = self.fleet.status(name) or {}
            keys = ("version", "newest", "audited", "state", "problem", "fresh", "work")
            lines.append(f"{name}: " + ", ".join(f"{key} {status[key]}"[:300] for key in keys if key in status))
        return tuple(lines)


class Died(Exception):
    """A program ended that nothing was done to, or lives on that was killed."""


def participants(case: Case) -> list[tuple[str, Rule]]:
    """Which programs run into which rule; the victim last, because the others bring it about."""
    others = [("trainer", kill("publish.sending", process="trainer"))] if case.fault.trigger == "abort" else []
    return [*others, (case.program, case.rule)]


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
