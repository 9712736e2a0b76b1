"""The parts that a node's status is collected from: the real ones, before any of them has been started."""

import random

from aurora_node.link import HostLink, Place
from aurora_node.status import snapshot
from aurora_node.weights import Weights
from aurora_node.work import WorkFigures
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.local.child import Limits
from aurora_p2p.net.drive import ExchangeDriver
from aurora_p2p.net.gate import Gate
from aurora_p2p.net.plane import DataPlane
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.wire.bulk import BulkStart
from aurora_p2p.wire.ticket import Ticket
from tests.host.world import NODES, SWARM

ME = NODES[0]


def driver_of(store):
    """An exchange that has no bulk child yet."""
    start = BulkStart(ME.seed, SWARM, "127.0.0.1", 0, 0, 0, str(store.root))
    return ExchangeDriver(ME.peer, DataPlane(start, None, Limits()), store, Gate(ME.peer, random.Random(1), ()))


def snapshot_of(folder, *, work=None, problem="", pauses=(), fetching=None, have=()):
    """What a node with these parts tells of itself; `fetching` is an artifact of which it holds the segments `have`."""
    with ArtifactStore(folder / "store", 1 << 40) as store:
        link = HostLink(ME, None, Place(Ticket(SWARM), (), ()), None, Trust(SWARM))
        weights, driver = Weights(store, None, 16), driver_of(store)
        weights.problem, weights.figures.pauses = problem, list(pauses)
        if fetching is not None:
            weights.restored(fetching, complete=False)
            driver._apply(ev.Restored(fetching, set(have)))
        return snapshot(ME.peer, link, weights, work or WorkFigures(), driver)
