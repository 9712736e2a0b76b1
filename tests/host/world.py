"""The rooms of a swarm host over a real ledger and a real store; the data plane is a list of the events it was fed."""

import json
from contextlib import asynccontextmanager

import trio

from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.host.answers import Answers, PoolDoor
from aurora_p2p.host.desk import PublicationDesk
from aurora_p2p.host.door import TrainerDoor
from aurora_p2p.host.membership import Membership
from aurora_p2p.host.status import Rooms, snapshot
from aurora_p2p.lease.events import VersionPublished
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import Output
from aurora_p2p.net.traffic import Traffic
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.types import NO_BASE, Epoch, Generation, StateDigest, SwarmId, Version
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.control import Join
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trainer import BeginPublish
from aurora_p2p.wire.trust import Delegation, PeerRecord

SEGMENT = 256
ROOT = Identity(bytes(range(32)))
SWARM = SwarmId(ROOT.peer)
KEYS = RoleKeys(*(Identity(bytes([index]) * 32) for index in range(10, 14)))
DELEGATION = Delegation(SWARM, Generation(1), KEYS.publish.peer, KEYS.admit.peer, KEYS.lease.peer, (KEYS.node.peer,))
NODES = [Identity(bytes([index]) * 32) for index in range(1, 5)]


class FedEvents:
    """What net/drive.py's driver is for a host: the list of what it was told. `fail`: raised by the next feed.

    held: artifact -> peer -> segments that it announced.
    """

    def __init__(self):
        self.events = []
        self.fail = None
        self.held = {}
        self.traffic = Traffic()

    def status(self):
        figures = {"up_kib": 0.0, "down_kib": 0.0, "banned": {}, "restarts": 0}
        return {**self.traffic.snapshot(lambda artifact: 0), **figures}

    def holders(self, artifact):
        return self.held.get(artifact, {})

    async def change_caps(self, up_kib=None, down_kib=None):
        return {"up_kib": up_kib or 0.0, "down_kib": down_kib or 0.0}

    async def feed(self, event):
        await trio.lowlevel.checkpoint()
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        self.events.append(event)
        self.traffic.happened(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class Host:
    """A host without network: desk, pool, membership, answers and the trainer's door."""

    def __init__(self, ledger, store, charter=None):
        self.ledger, self.store, self.driver = ledger, store, FedEvents()
        self.desk = PublicationDesk(SWARM, KEYS.publish, ledger, store, self.driver)
        self.pool = WorkPool(ledger.run, ledger.secret, ledger.epoch, LeaseOptions(tail_seconds=0.05))
        self.pool.restore(ledger.restore(), now=boottime())
        self.pool_door = PoolDoor(self.pool, ledger)
        self.members = Membership(SWARM, KEYS.admit, Generation(1), Epoch(ledger.epoch << 20))
        self.answers = Answers(SWARM, KEYS, charter, Generation(1), self.members, self.pool_door, Output(as_json=True))
        self.answers.newest = lambda: self.desk.newest
        self.door = TrainerDoor(SWARM, ledger.run, SEGMENT, self.desk, self.pool_door)

    def status(self, now=None):
        """The snapshot, as JSON gives it to others."""
        rooms = Rooms(
            delegation=DELEGATION,
            run=self.ledger.run,
            desk=self.desk,
            members=self.members,
            pool=self.pool,
            driver=self.driver,
            progress=self.answers.progress,
            steps=self.door.steps,
        )
        return json.loads(json.dumps(snapshot(rooms, now=boottime() if now is None else now)))

    async def publish(self, version, body=b"weights", **changes):
        """One publication through the desk and into the pool; returns what HEAD then names."""
        await self.desk.begin(begin(version, self.desk.newest, **changes), SEGMENT)
        await self.desk.add(body)
        await self.desk.end(digest_of(version))
        newest = self.desk.newest
        await self.pool_door.handle(VersionPublished(newest.version, newest.manifest_hash, newest.digest))
        return newest


@asynccontextmanager
async def open_host(home, *, quota_bytes=1 << 24, charter=None):
    """Start a host on what `home` holds; on leaving it is gone as after a SIGKILL, but for the locks."""
    ledger = Ledger.open(home / "ledger.sqlite")
    store = ArtifactStore(home / "artifacts", quota_bytes)
    try:
        host = Host(ledger, store, charter)
        await host.desk.restore(store.load(now=boottime()))
        yield host
    finally:
        store.close()
        ledger.close()


def digest_of(version):
    return StateDigest(hash_of(b"weights %d" % version))


def begin(version, newest=None, **changes):
    """A snapshot, or a delta onto `newest`."""
    values = {
        "version": Version(version),
        "kind": "delta" if newest else "snapshot",
        "base_version": newest.version if newest else NO_BASE,
        "base_digest": newest.digest if newest else b"",
        "layout": bytes(32),
        "size_bound": 10_000,
        "class_map": b"",
        "tensors": (),
        "model": None,
    }
    return BeginPublish(**{**values, **changes})


def record_of(node, seq=1, **changes):
    values = {
        "swarm": SWARM,
        "peer": node.peer,
        "seq": seq,
        "control": (f"/ip4/127.0.0.1/tcp/{4000 + seq}",),
        "bulk": ("127.0.0.1:4102",),
        "up_kbps": 0,
    }
    return PeerRecord(**{**values, **changes})


def join_of(node, seq=1, *, signer=None, swarm=SWARM, wire=(1, 1), **changes):
    """A Join of `node` with its record, signed by `signer` (itself)."""
    return Join(swarm, seal(signer or node, record_of(node, seq, **changes)), *wire, bytes(32))


def events_of(capsys):
    """What Output(as_json=True) printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]
