"""No stuck state: a node that lacks a segment, has nothing else to do, and could get it, does not stay so.

A watchdog looks at the statuses of all programs of a swarm, again and again, and keeps for each node since when it has
stood still in spite of a reason to move:

    behind    the node serves, and has staged, less than the host's newest version
    missing   of an artifact that leads further it holds fewer segments than another program it has a link to
    idle      no byte arrived, nothing was staged or committed since the last look

Programs that do not answer (killed, stopped) neither stand still nor hold anything. A node whose owner paused it, or
whose disk is full, is excused: it says so. What stood still longer than `bound` seconds is a Stall.

It does not judge speed, only motion. The simulator has a finer one (SegmentWatch), which sees what every machine holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aurora_p2p.types import ArtifactId, PeerId

if TYPE_CHECKING:
    from aurora_p2p.testing.node import Node

Status = Mapping[str, Any]
BOUND_SECONDS = 20.0
"""A first contact dialled anew, a hedge and a stall fit into it several times over."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A node that stood still for `seconds`, at `version`, although `holder` has what it lacks of `artifact`."""

    name: str
    seconds: float
    version: int
    artifact: str
    have: int
    holder: str


@dataclass(slots=True)
class _Still:
    marks: tuple[int, ...]
    since: float


@dataclass(slots=True)
class Watchdog:
    """Call `look` a few times a second; `stalls` has each node that stood still too long, once."""

    bound: float = BOUND_SECONDS
    stalls: list[Stall] = field(default_factory=list)
    longest: float = 0.0
    """The longest that any node has stood still, seconds."""
    _still: dict[str, _Still] = field(default_factory=dict)

    def look(self, host: Status | None, nodes: Mapping[str, Status | None], *, now: float) -> None:
        """One look at everybody; None for a program that does not answer."""
        answering = {name: status for name, status in nodes.items() if status is not None}
        for name in list(self._still):
            if name not in answering:
                del self._still[name]
        everybody = {**answering, **({"host": host} if host is not None else {})}
        newest = max((int(status["version"]) for status in everybody.values()), default=-1)
        for name, status in answering.items():
            others = {other: one for other, one in everybody.items() if other != name}
            self._one(name, status, newest, others, now)

    def _one(self, name: str, status: Status, newest: int, others: Mapping[str, Status], now: float) -> None:
        marks, gap = _marks(status), _gap(status, newest, others)
        still = self._still.get(name)
        if gap is None or still is None or still.marks != marks:
            self._still[name] = _Still(marks, now)
            return
        seconds = now - still.since
        self.longest = max(self.longest, seconds)
        if seconds > self.bound:
            self.stalls.append(Stall(name, seconds, int(status["version"]), *gap))
            self._still[name] = _Still(marks, now)


def _marks(status: Status) -> tuple[int, ...]:
    """What changes as long as a node moves."""
    exchange = status["exchange"]
    have = sum(artifact["have"] for artifact in exchange["artifacts"])
    counts = ("version", "newest", "commits", "failures", "engine_restarts")
    return (*(int(status.get(key, 0)) for key in counts), int(exchange["received_bytes"]), int(have))


def _gap(status: Status, newest: int, others: Mapping[str, Status]) -> tuple[str, int, str] | None:
    """(artifact, segments held, name of a holder) of something that the node lacks and could get now."""
    reached = max(int(status["version"]), int(status["newest"]))
    exchange = status["exchange"]
    presence = status.get("presence") or {}
    if reached >= newest or exchange["disk_paused"] or presence.get("paused_by"):
        return None
    linked = {peer["peer"] for peer in exchange["peers"] if peer["linked"]}
    for artifact in exchange["artifacts"]:
        complete = artifact["segments"] > 0 and artifact["have"] >= artifact["segments"]
        if artifact["version"] <= reached or complete:
            continue
        for other, one in others.items():
            if _peer_of(one) in linked and _have(one, artifact["artifact"]) > artifact["have"]:
                return artifact["artifact"], int(artifact["have"]), other
    return None


def _peer_of(status: Status) -> str:
    return str(status.get("peer") or status["members"][0])


def _have(status: Status, artifact: str) -> int:
    found = (one for one in status["exchange"]["artifacts"] if one["artifact"] == artifact)
    return int(next(found, {"have": 0})["have"])


@dataclass(slots=True)
class SegmentWatch:
    """The same for machines in the simulator: since when nothing has arrived at a node that could get something."""

    bound: float
    """Simulated seconds."""
    stalls: list[tuple[PeerId, float]] = field(default_factory=list)
    longest: float = 0.0
    _still: dict[PeerId, tuple[int, float]] = field(default_factory=dict)

    def look(self, nodes: Iterable[Node], artifacts: Iterable[ArtifactId], *, now: float) -> None:
        """One look at all nodes that are alive. artifacts: those that everybody wants."""
        wanted = list(artifacts)
        alive = {node.peer: node for node in nodes if node.alive}
        for node in alive.values():
            others = [alive[peer] for peer in node.links if peer in alive]
            could = any(_lacks(node, other, artifact) for artifact in wanted for other in others)
            self._one(node, could, now)

    def _one(self, node: Node, could: bool, now: float) -> None:
        held = sum(map(len, node.store.values()))
        before = self._still.get(node.peer)
        if not could or before is None or before[0] != held:
            self._still[node.peer] = (held, now)
            return
        seconds = now - before[1]
        self.longest = max(self.longest, seconds)
        if seconds > self.bound:
            self.stalls.append((node.peer, seconds))
            self._still[node.peer] = (held, now)


def _lacks(node: Node, other: Node, artifact: ArtifactId) -> bool:
    """Whether `other` has a segment that `node` lacks."""
    return bool(other.store.get(artifact, {}).keys() - node.store.get(artifact, {}).keys())
