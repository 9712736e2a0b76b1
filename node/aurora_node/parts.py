"""What a node is made of before anything runs: its folders, keys, settings, store and memory of the swarm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aurora_node.config import NodeConfig
from aurora_node.guest import policy_of
from aurora_node.link import Place
from aurora_node.presence import Policy
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.engine.names import check_engine
from aurora_p2p.local.config import make_home
from aurora_p2p.local.output import Output
from aurora_p2p.net.addresses import advertised_bulk, check_cidrs, own_scope
from aurora_p2p.store.peers import SwarmMemory
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trust import Floor, PeerRecord

MAX_CONTROL_ADDRESSES = 16
"""Of a peer record (its wire limit)."""


@dataclass(frozen=True, slots=True)
class Parts:
    """home: of this machine's node. folder: of this swarm within it."""

    home: Path
    folder: Path
    config: NodeConfig
    ticket: Ticket
    output: Output
    identity: Identity
    memory: SwarmMemory
    store: ArtifactStore
    policy: Policy

    @property
    def place(self) -> Place:
        """Where to look for the swarm, and what may be dialled."""
        typed = (*self.config.bootstraps, *self.ticket.bootstraps)
        local = (*self.config.local, *self.ticket.local, *own_scope(typed))
        return Place(self.ticket, self.config.bootstraps, tuple(dict.fromkeys(local)))

    def trust(self) -> Trust:
        """What was believed when this node last ran, and what its ticket says."""
        known, told = self.memory.floor(), self.ticket.floor
        floor = Floor(max(known.generation, told.generation), max(known.seq, told.seq))
        trust = Trust(self.ticket.swarm, floor)
        charter = self.memory.charter()
        if charter is not None:
            trust.adopt(charter)
        return trust

    def record(self, control: Sequence[str], bulk_port: int) -> PeerRecord:
        """How others reach this node; each call has a newer number."""
        return PeerRecord(
            swarm=self.ticket.swarm,
            peer=self.identity.peer,
            seq=self.memory.next_record_seq(),
            control=tuple(address.rpartition("/p2p/")[0] for address in control)[:MAX_CONTROL_ADDRESSES],
            bulk=advertised_bulk(self.config.advertise, control, bulk_port),
            up_kbps=int(self.config.up_kib_per_second * 8.192),
        )


@contextmanager
def open_parts(home: Path, config: NodeConfig, ticket: Ticket, output: Output) -> Iterator[Parts]:
    """Open keys, memory and store. Raises UsageError for settings that mean nothing, StoreError for the disk."""
    check_cidrs(config.local)
    check_engine(config.engine)
    policy = policy_of(config, home)
    identity = Identity.load_or_create(home / "node.key")
    folder = make_home(home / "swarms" / ticket.swarm[-16:])
    memory = SwarmMemory.open(folder / "memory.sqlite", ticket.swarm)
    try:
        with ArtifactStore(folder / "artifacts", int(config.quota_gib * 2**30)) as store:
            yield Parts(home, folder, config, ticket, output, identity, memory, store, policy)
    finally:
        memory.close()
