"""A frozen picture of the work pool, for people: status output and the trainer's "why am I waiting"."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aurora_p2p.lease.admission import lag_allowed
from aurora_p2p.lease.book import Book, StepWork
from aurora_p2p.lease.fleet import Fleet
from aurora_p2p.types import PeerId, Step, Version


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """leased: samples it holds now; withheld: samples it leased and never sent, up to now."""

    peer: PeerId
    version: Version
    tokens_per_second: float | None
    active: bool
    leased: int
    admitted: int
    refused: int
    withheld: int


@dataclass(frozen=True, slots=True)
class StepStatus:
    step: Step
    total: int
    open: int
    leased: int
    admitted: int


@dataclass(frozen=True, slots=True)
class PoolStatus:
    version: Version
    """The newest published one; -1 before the first."""
    nodes: tuple[NodeStatus, ...]
    steps: tuple[StepStatus, ...]
    refused: dict[str, int]
    """Results refused, by reason."""


def status_of(book: Book, fleet: Fleet, now: float) -> PoolStatus:
    leased: Counter[PeerId] = Counter()
    for lease in book.live.values():
        leased[lease.terms.lessee] += len(lease.seeds)
    nodes = tuple(
        NodeStatus(
            peer=peer,
            version=node.version,
            tokens_per_second=node.rate,
            active=peer in leased or now - node.asked <= fleet.options.active_seconds,
            leased=leased[peer],
            admitted=node.admitted,
            refused=node.refused,
            withheld=node.withheld,
        )
        for peer, node in sorted(fleet.nodes.items())
    )
    steps = tuple(_step_status(step, work) for step, work in sorted(book.steps.items()))
    return PoolStatus(book.newest, nodes, steps, {reason.value: count for reason, count in book.refused.items()})


def _step_status(step: Step, work: StepWork) -> StepStatus:
    waiting, admitted = work.open_samples(), len(work.admitted)
    return StepStatus(step, work.total, waiting, work.total - waiting - admitted, admitted)


def why_waiting(book: Book, step: Step, max_lag: int) -> str:
    """One line on what keeps a step from being complete."""
    if not any(lag_allowed(step, version, max_lag) for version in book.versions):
        return f"no version is published that may work on step {step}"
    leased: Counter[PeerId] = Counter()
    for lease in book.live.values():
        if lease.terms.step == step:
            leased[lease.terms.lessee] += len(lease.seeds)
    waiting = book.steps[step].open_samples()
    return f"{leased.total()} samples leased to {len(leased)} nodes, {waiting} not yet asked for"
