"""What the log keeps of leases and results: records with the run, step, lease and peer they are about. Pure.

lease            a node was granted samples           lease-ended    one ended before its last sample came
results          samples of a lease were admitted     refused        results that were not, by reason
prompts          a trainer submitted a step           complete       a step has its last sample
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from aurora_p2p.host.steps import StepEntry
from aurora_p2p.lease.events import (
    Completed,
    Effect,
    Ended,
    Event,
    From,
    LeaseGranted,
    Persist,
    ResultRefused,
    SampleAdmitted,
)
from aurora_p2p.local.output import Output
from aurora_p2p.local.screen.figures import counted
from aurora_p2p.net.drive import Notice
from aurora_p2p.swarm.events import Equivocated, Refused
from aurora_p2p.types import LeaseId, PeerId, RunId, Step
from aurora_p2p.wire.trainer import Published, SubmitPrompts

Note = tuple[str, dict[str, Any]]
"""(name, fields) for Output.note."""


class Journal:
    """Writes what happens to `output`. equivocated: whether a second publisher was seen since the start."""

    def __init__(self, output: Output, run: RunId) -> None:
        self._output, self._run = output, run.hex()
        self.equivocated = False

    def happened(self, event: Event | None, effects: Sequence[Effect]) -> None:
        """What the pool made of an event, once the ledger has kept it."""
        for name, fields in notes_of(event, effects):
            self._output.note(name, run=self._run, **fields)

    def published(self, published: Published, kind: str) -> None:
        segments = counted(published.segments, "segment")
        text = f"version {published.version}: {kind} of {published.length:,} bytes in {segments}"
        self._output.event(
            "published",
            text,
            version=published.version,
            kind=kind,
            bytes=published.length,
            segments=published.segments,
        )

    def step_done(self, entry: StepEntry) -> None:
        self._output.note(
            "step",
            run=self._run,
            step=entry.step,
            reward=entry.reward,
            seconds=round(entry.seconds, 3),
            wait_share=round(entry.wait_share, 4),
            tokens=entry.tokens,
        )

    def notice(self, notice: Notice) -> None:
        """What the exchange noticed."""
        match notice:
            case Refused(peer, reason):
                self._output.event("refused", f"refused {peer}: {reason}", peer=peer, reason=reason)
            case Equivocated():
                self.equivocated = True
                self._output.event("equivocation", "another process publishes with this swarm's key: stop one")

    def disk_changed(self, why: str) -> None:
        """The ledger waits for room (why: one line), or goes on (empty)."""
        if why:
            self._output.event("disk-full", f"{why}: grants and acknowledgements wait until there is room")
        else:
            self._output.event("disk-room", "there is room on the disk again: everything goes on")


def notes_of(event: Event | None, effects: Sequence[Effect]) -> list[Note]:
    """The notes of one event (None: a deadline) that the ledger has kept, in order."""
    notes: list[Note] = []
    admitted: Counter[tuple[LeaseId, Step, PeerId]] = Counter()
    refused: Counter[str] = Counter()
    for effect in effects:
        match effect:
            case Persist(LeaseGranted() as granted):
                notes.append(("lease", _granted(granted)))
            case Persist(SubmitPrompts(step, prompts, group)):
                notes.append(("prompts", {"step": step, "prompts": len(prompts), "group": group}))
            case Persist(SampleAdmitted(signed, result)):
                admitted[result.lease, result.target_step, signed.signer] += 1
            case Persist(ResultRefused(reason, count)):
                refused[reason.value] += count
            case Ended(lease, peer, reason, samples):
                fields = {"lease": lease.hex(), "peer": peer, "reason": reason.value, "samples": samples}
                notes.append(("lease-ended", fields))
            case Completed(step):
                notes.append(("complete", {"step": step}))
    results = [
        ("results", {"step": step, "lease": lease.hex(), "peer": peer, "admitted": count})
        for (lease, step, peer), count in admitted.items()
    ]
    told = [("refused", {"peer": event.peer, "reasons": dict(refused)})] if refused and isinstance(event, From) else []
    return [*results, *told, *notes]


def _granted(granted: LeaseGranted) -> dict[str, Any]:
    return {
        "step": granted.step,
        "lease": granted.lease.hex(),
        "peer": granted.lessee,
        "version": granted.version,
        "samples": len(granted.samples),
        "seconds": round(granted.seconds, 3),
    }
