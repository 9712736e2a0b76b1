"""Plans of faults for real processes: what fails, where, at which hit; and the name of every crash point.

    environment = plan(kill("results.durable"), process="host").environment(marks)
    subprocess.Popen(["aurora-host", "run"], env={**os.environ, **environment})
    marks_in(marks)               # what has acted, in which process and when

A rule is one of
    kill, stop, delay, fail      at a named point (POINTS), at its n-th hit in a process
    disk_full, disk_error, torn  at a disk operation on a path that matches a glob
    cut, slow, corrupt, refuse   in the sockets of the data plane

The processes are the real ones, killed by SIGKILL: no code of theirs is replaced, and nothing of theirs gets to clean
up. A plan without a folder of marks acts once in each process; with one, once in all, so that the child which replaces
a killed child lives, and a test can see what has acted. What a kill does not show: SIGKILL keeps the kernel's page
cache, so a missing fsync is invisible; a torn write is the nearest.

docs/testing.md shows how to use it in tests of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aurora_p2p.errors import UsageError
from aurora_p2p.local.faults import (
    VARIABLE,
    Direction,
    DiskRule,
    Error,
    Mark,
    Operation,
    Plan,
    PointRule,
    Process,
    Rule,
    WireRule,
)

POINTS: Mapping[str, str] = {
    # node: artifacts
    "artifact.created": "a header is on disk and its space reserved; the store does not know of it yet",
    "page.saved": "a signed page is appended, in the page cache only",
    "segment.storing": "a verified segment is about to go from its spool file into the body",
    "segment.stored": "its bytes are in the body; nothing knows of it yet",
    "artifact.finishing": "body and final page are synced; the marker `complete` is not there",
    "artifact.finished": "the marker is there; nobody has been told",
    "artifact.retiring": "an artifact's folder is renamed, but not removed",
    # node: weights
    "weights.staging": "the engine is about to be asked to load or stage",
    "weights.staged": "the engine has staged; the daemon has not noted it",
    "weights.committing": "the engine is about to be asked to commit",
    "weights.committed": "the engine serves the new version; the daemon still reports the old one",
    # node: work
    "lease.received": "a grant is there and its signature checked; nothing is generated",
    "samples.generated": "samples came from the engine; they are neither signed nor sent",
    "results.submitting": "signed results are about to be sent",
    "results.answered": "the host has answered; the node has not noted it",
    "memory.writing": "in the middle of the transaction that remembers the swarm's peers",
    # engine child
    "engine.committing": "in the middle of a commit: some tensors are written, others are not",
    "engine.answering": "a load, stage, commit or audit is done; its answer is not sent",
    "engine.generated": "samples are finished; they are not sent to the daemon",
    # fold child
    "fold.sending": "a part of a folded body is sent to the daemon; the rest is not decoded",
    # bulk child
    "bulk.sending": "a part of a segment has gone into the socket",
    "bulk.receiving": "a part of a segment is in the spool",
    "bulk.received": "a whole segment is in the spool; the daemon has not been told",
    # host: publishing
    "seq.reserved": "a publication number is on disk; there is no header yet",
    "header.written": "the header is in the store; the ledger does not know its artifact",
    "header.opened": "the ledger knows the artifact; the swarm has not been told",
    "body.added": "a piece of the body is stored; its segments are not offered yet",
    "final.signed": "the final page is signed, in memory only",
    "final.written": "the final page is on disk; the artifact is not complete",
    "publication.completing": "the artifact is complete on disk; the ledger still calls it open",
    "publication.completed": "the ledger calls it complete; neither swarm nor trainer has been told",
    "publication.offered": "HEAD names it; the trainer has not been answered",
    "publication.aborting": "an Abort has left; the ledger still calls the publication open",
    # host: leases and results
    "prompts.decided": "a step's prompts are in the pool, but not in the ledger",
    "prompts.durable": "they are in the ledger; the trainer has not been answered",
    "grant.decided": "a lease is given in memory, but not in the ledger",
    "grant.durable": "the lease is in the ledger; it has not been sent",
    "results.decided": "results are admitted in memory, but not in the ledger",
    "results.durable": "they are in the ledger; they have not been acknowledged",
    "ledger.writing": "in the middle of a transaction of the ledger",
    "ledger.written": "a transaction is on disk; nobody who waits for it knows",
    # trainer
    "prompts.submitted": "the host has taken a step's prompts",
    "rollouts.taken": "a step's rollouts are here; nothing is trained",
    "step.trained": "the optimizer has stepped; nothing is saved or published",
    "publish.begun": "a publication is begun; no byte is sent",
    "publish.sending": "a part of the body is sent",
    "publish.ending": "the whole body is sent; the publication is open",
    "publish.ended": "the host has completed the publication; the trainer has not noted it",
    # any
    "file.synced": "a small file is written and synced beside the old one",
    "files.synced": "a checkpoint is written and synced beside its place",
    "files.ready": "a folder's new checkpoint is complete in it; none of its files is in its place",
    "files.moved": "one of its files has replaced the old one",
    "file.renamed": "it has replaced the old one; the folder is not synced",
}
"""Every name that `reach` is called with in the sources: what is so when a process dies there."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Rules for one program and its children."""

    rules: tuple[Rule, ...]

    def environment(self, marks: Path | None = None, *, gated: bool = False) -> dict[str, str]:
        """The variable that arms a program. marks: an existing folder; each rule then acts once in all processes.

        gated: each rule is at rest until `release` lets it go.
        """
        plan = Plan(self.rules, str(marks) if marks else "", gated)
        return {VARIABLE: msgspec.json.encode(plan).decode()}


def plan(*rules: Rule, process: Process = "") -> Faults:
    """Rules together. process: the kind that those without one of their own are for."""
    return Faults(tuple(rule if rule.process else msgspec.structs.replace(rule, process=process) for rule in rules))


def kill(point: str, *, hit: int = 1, process: Process = "") -> Rule:
    """SIGKILL to the process itself, at the hit-th time it reaches the point. Raises UsageError for an unknown one."""
    return PointRule(_known(point), "kill", hit, process=process)


def stop(point: str, *, hit: int = 1, process: Process = "") -> Rule:
    """SIGSTOP to the process itself; somebody else sends SIGCONT (`Mark.pid`)."""
    return PointRule(_known(point), "stop", hit, process=process)


def delay(point: str, seconds: float, *, hit: int = 1, process: Process = "") -> Rule:
    """Block the thread that reaches the point; in a daemon that is its whole event loop. hit 0: each time."""
    return PointRule(_known(point), "delay", hit, seconds, process=process)


def fail(point: str, error: Error = "EIO", *, hit: int = 1, process: Process = "") -> Rule:
    """Raise OSError at the point."""
    return PointRule(_known(point), "fail", hit, error=error, process=process)


def disk_full(operation: Operation, path: str = "*", *, hit: int = 1, process: Process = "") -> Rule:
    """ENOSPC at the hit-th such operation on a path that matches the glob; hit 0: at each."""
    return DiskRule(operation, path, "fail", hit, "ENOSPC", process)


def disk_error(
    operation: Operation, path: str = "*", *, error: Error = "EIO", hit: int = 1, process: Process = ""
) -> Rule:
    """Another error of the disk."""
    return DiskRule(operation, path, "fail", hit, error, process)


def torn(path: str = "*", *, hit: int = 1, process: Process = "") -> Rule:
    """Write the first half, then SIGKILL."""
    return DiskRule("write", path, "tear", hit, process=process)


def cut(direction: Direction, after: int, *, process: Process = "bulk") -> Rule:
    """Break the connection over which byte number `after` goes."""
    return WireRule(direction, "drop", after, process=process)


def slow(direction: Direction, seconds: float, *, after: int = 0, process: Process = "bulk") -> Rule:
    """A pause at each piece (at most 16 KiB) from byte number `after` on."""
    return WireRule(direction, "delay", after, 0, seconds, process)


def corrupt(after: int, *, process: Process = "bulk") -> Rule:
    """Change one byte of what arrives, behind TLS, as bad memory would."""
    return WireRule("in", "corrupt", after, process=process)


def refuse(*, after: int = 0, process: Process = "bulk") -> Rule:
    """Every connect fails, after the first `after` of them."""
    return WireRule("connect", "refuse", after, 0, process=process)


def release(folder: Path, rule: int) -> None:
    """Let the rule of that place in a gated plan act from now on. Its hits count from here."""
    (folder / f"{rule}.go").touch()


def marks_in(folder: Path) -> list[Mark]:
    """What has acted so far, oldest first."""
    found = []
    for path in folder.iterdir():
        if path.suffix:  # a gate
            continue
        content = path.read_bytes()
        if content:  # else it is being written just now
            found.append(msgspec.json.decode(content, type=Mark))
    return sorted(found, key=lambda mark: mark.boottime)


def _known(point: str) -> str:
    if point not in POINTS:
        raise UsageError(f"there is no crash point {point!r}", hint="aurora_p2p.testing.faults.POINTS has them all")
    return point
