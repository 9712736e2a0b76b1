"""A node's weights with a real store and an engine that does what it is told."""

from contextlib import asynccontextmanager

import trio
import trio.testing

from aurora_node.weights import Weights
from aurora_p2p.artifact.chain import Checkpoint
from aurora_p2p.artifact.manifest import manifest_hash_of
from aurora_p2p.artifact.store import ArtifactStore
from tests.node.world import ScriptedEngine, Swarm

settled = trio.testing.wait_all_tasks_blocked


def checkpoint_of(one):
    return Checkpoint(one.manifest.header.version, manifest_hash_of(one.final), one.manifest.final.digest)


class Node:
    """Weights with their store and engine; `accepted` is what the exchange was told to fetch."""

    def __init__(self, store, swarm, audit_every):
        self.store, self.swarm, self.accepted = store, swarm, []
        self.lacking, self.notes = "", []
        self.weights = Weights(store, self._accept, audit_every, lambda manifest: self.lacking, self._note)
        self.engine = ScriptedEngine()
        self.weights.attach(self.engine)

    def _note(self, name, **fields):
        self.notes.append((name, fields))

    async def _accept(self, artifact):
        self.accepted.append(artifact)

    async def announce(self, *all_):
        for one in all_:
            await self.weights.announced(one.manifest)

    async def receive(self, *all_):
        """Announced, fetched, complete, and whatever staging follows from it."""
        for one in all_:
            await self.announce(one)
            await self.complete(one)

    async def complete(self, one):
        """The rest of `receive` for what was announced before; no thread works meanwhile."""
        self.swarm.receive(one)
        await self.weights.completed(one.artifact)
        await settled()


def run(tmp_path, use, *, audit_every=16, quota_bytes=1 << 26, clock=None):
    """`use(node, swarm)` while the node stages in the background."""

    async def main():
        with ArtifactStore(tmp_path / "artifacts", quota_bytes) as store:
            swarm = Swarm(store, tmp_path / "spool")
            node = Node(store, swarm, audit_every)
            async with staging(node):
                await use(node, swarm)

    trio.run(main)


@asynccontextmanager
async def staging(node):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.weights.run, node.engine)
        yield
        nursery.cancel_scope.cancel()
