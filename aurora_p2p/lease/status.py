"""A frozen picture of the work pool, for people: status output and the trainer's "why am I waiting"."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from aurora_p2p.lease.admission import lag_allowed
from aurora_p2p.lease.book import Book, StepWork
from aurora_p2p.lease.fleet import Fleet
from aurora_p2p.types import PeerId, Step, Version

SHOWN_LEASES = 64
"""Live leases in a status: those whose deadline is nearest."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """leased: samples it holds now; withheld: samples it leased and never sent, up to now.

    reasons: its refused results by reason; asked_seconds: since it last asked for work, None before the first time.
    """

    peer: PeerId
    version: Version
    tokens_per_second: float | None
    active: bool
    leased: int
    admitted: int
    refused: int
    withheld: int
    reasons: dict[str, int]
    asked_seconds: float | None


@dataclass(frozen=True, slots=True)
class StepStatus:
    """why: what keeps it from being complete, one line; empty when nothing does."""

    step: Step
    total: int
    open: int
    leased: int
    admitted: int
    why: str


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A live lease. samples: those not admitted yet; seconds_left: until its deadline."""

    lease: str
    peer: PeerId
    step: Step
    version: Version
    samples: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class PoolStatus:
    version: Version
    """The newest published one; -1 before the first."""
    max_lag: int
    nodes: tuple[NodeStatus, ...]
    steps: tuple[StepStatus, ...]
    leases: tuple[LeaseStatus, ...]
    """The nearest deadline first, at most SHOWN_LEASES."""
    live_leases: int
    refused: dict[str, int]
    """Results refused, by reason."""


def status_of(book: Book, fleet: Fleet, now: float) -> PoolStatus:
    leased: Counter[PeerId] = Counter()
    for lease in book.live.values():
        leased[lease.terms.lessee] += len(lease.seeds)
    return PoolStatus(
        version=book.newest,
        max_lag=fleet.options.max_lag,
        nodes=_nodes(fleet, leased, now),
        steps=tuple(_step_status(book, fleet, step, now) for step in sorted(book.steps)),
        leases=_leases(book, now),
        live_leases=len(book.live),
        refused={reason.value: count for reason, count in book.refused.items()},
    )


def _nodes(fleet: Fleet, leased: Counter[PeerId], now: float) -> tuple[NodeStatus, ...]:
    return tuple(
        NodeStatus(
            peer=peer,
            version=node.version,
            tokens_per_second=node.rate,
            active=peer in leased or now - node.asked <= fleet.options.active_seconds,
            leased=leased[peer],
            admitted=node.admitted,
            refused=node.refused.total(),
            withheld=node.withheld,
            reasons={reason.value: count for reason, count in node.refused.items()},
            asked_seconds=now - node.asked if node.asked > -math.inf else None,
        )
        for peer, node in sorted(fleet.nodes.items())
    )


def _step_status(book: Book, fleet: Fleet, step: Step, now: float) -> StepStatus:
    work = book.steps[step]
    waiting, admitted = work.open_samples(), len(work.admitted)
    return StepStatus(
        step, work.total, waiting, work.total - waiting - admitted, admitted, why_waiting(book, fleet, step, now)
    )


def _leases(book: Book, now: float) -> tuple[LeaseStatus, ...]:
    nearest = sorted(book.live.values(), key=lambda lease: lease.deadline)[:SHOWN_LEASES]
    return tuple(
        LeaseStatus(
            lease=lease.terms.lease.hex(),
            peer=lease.terms.lessee,
            step=lease.terms.step,
            version=lease.terms.version,
            samples=len(lease.seeds),
            seconds_left=max(lease.deadline - now, 0.0),
        )
        for lease in nearest
    )


def why_waiting(book: Book, fleet: Fleet, step: Step, now: float) -> str:
    """What keeps a step from being complete, continuing "step 41 waits for ..."; empty when nothing does."""
    work, max_lag = book.steps[step], fleet.options.max_lag
    if work.complete or step < book.newest:
        return ""
    if not any(lag_allowed(step, version, max_lag) for version in book.versions):
        newest = "none is" if book.newest < 0 else f"{book.newest} is"
        return f"version {max(step - max_lag, 0)}, the oldest that may work on it: {newest} published"
    return f"{_missing(work)}: {', '.join([*_leased(book, step, now), *_open(book, fleet, work, now)])}"


def _missing(work: StepWork) -> str:
    return f"{work.total - len(work.admitted)} of {work.total} samples"


def _leased(book: Book, step: Step, now: float) -> list[str]:
    leases = [lease for lease in book.live.values() if lease.terms.step == step]
    if not leases:
        return []
    samples, nodes = sum(len(lease.seeds) for lease in leases), len({lease.terms.lessee for lease in leases})
    left = max(min(lease.deadline for lease in leases) - now, 0.0)
    return [f"{samples} leased to {nodes} node{'s' if nodes > 1 else ''} (next deadline in {left:.0f} s)"]


def _open(book: Book, fleet: Fleet, work: StepWork, now: float) -> list[str]:
    """Samples that nobody works on, and who could."""
    waiting = work.open_samples()
    if not waiting:
        return []
    step = Step(work.submitted.step)
    busy = {lease.terms.lessee for lease in book.live.values()}
    able = sum(node.version in book.versions for node in fleet.eligible(step, busy, now).values())
    return [f"{waiting} open" + ("" if able else f" ({_nobody(fleet, busy, now)})")]


def _nobody(fleet: Fleet, busy: set[PeerId], now: float) -> str:
    active = [
        node for peer, node in fleet.nodes.items() if now - node.asked <= fleet.options.active_seconds or peer in busy
    ]
    if not active:
        return "no node asks for work"
    held = sorted({node.version for node in active})
    versions = f"version {held[0]}" if len(held) == 1 else f"versions {held[0]} to {held[-1]}"
    return (
        f"the {len(active)} active nodes hold {versions}"
        if len(active) > 1
        else f"the one active node holds {versions}"
    )
