"""A publisher, a real store, and an engine that does what it is told: the process-external part of a node."""

import trio

from aurora_p2p.artifact.manifest import manifest_hash_of
from aurora_p2p.errors import CheckpointError, ChildError
from aurora_p2p.local.clock import boottime
from aurora_p2p.wire.engine import Done, Generated, Samples
from aurora_p2p.wire.fold import Source
from tests.artifact.conftest import Publisher


class Swarm:
    """What the publisher has published, and what this node has received of it."""

    def __init__(self, store, spool):
        self.publisher, self.store, self.spool = Publisher(), store, spool
        spool.mkdir()
        self.published = []

    def snapshot(self, version, **options):
        return self._publish(version, kind="snapshot", **options)

    def delta(self, version, base):
        """A delta onto `base`, an earlier publication."""
        final = base.manifest.final
        return self._publish(version, base=manifest_hash_of(base.final), digest=final.digest)

    def squash(self, base, reached, **changes):
        """A direct delta from one publication to the state of another."""
        version, final = reached.manifest.header.version, base.manifest.final
        changes = {"base_version": base.manifest.header.version, **changes}
        return self._publish(version, digest=final.digest, changes=changes, reaches=reached.manifest.final.digest)

    def _publish(self, version, **options):
        seq = len(self.published) + 1
        self.published.append(self.publisher.publish(version, bytes([seq]) * 700, seq=seq, **options))
        return self.published[-1]

    def receive(self, one):
        """Every segment and the final page, onto disk; its header must have been accepted."""
        for page in one.pages:
            self.store.save_page(one.artifact, page)
        for index in range(one.manifest.final.segments):
            source = self.spool / str(index)
            source.write_bytes(one.segment(index))
            self.store.put(one.artifact, index, source)
        self.store.save_final(one.artifact, one.final)
        self.store.finish(one.artifact, now=boottime())


class ScriptedEngine:
    """What engine/client.py's EngineClient is. `calls`: what it was asked; `fail`: method -> error to raise next.

    `hold`: method -> Event to wait for first. `lie`: the digest that commit reports instead of the right one.
    """

    def __init__(self):
        self.calls, self.fail, self.hold = [], {}, {}
        self.lie = None
        self.digests = {}
        self.batches = []
        """What generate yields: a Samples, an Event to wait for, or an error."""
        self.stopped = 0

    async def _called(self, name, version, *rest):
        self.calls.append((name, version, *rest))
        await trio.lowlevel.checkpoint()
        if name in self.hold:
            await self.hold[name].wait()
        if name in self.fail:
            raise self.fail.pop(name)

    async def load(self, header, body, digest, deltas=()):
        await self._called("load", header.version, *(delta.header.version for delta in deltas))
        assert body.exists()
        last = (deltas or [Source(header, str(body), digest)])[-1]
        return Done(0, last.header.version, last.digest, True, 5, 0.5)

    async def stage(self, header, body, digest):
        await self._called("stage", header.version)
        assert body.exists()
        self.digests[header.version] = digest
        return Done(0, header.version, digest, False, 3, 0.25)

    async def commit(self, version, *, audit=False):
        await self._called("commit", version, audit)
        if version not in self.digests:
            raise CheckpointError(f"version {version} is not staged")
        return Done(0, version, self.lie or self.digests[version], audit, 3, 0.125)

    async def generate(self, sampling, prompts, samples):
        self.calls.append(("generate", len(samples)))
        done = False
        try:
            for batch in self.batches:
                if isinstance(batch, trio.Event):
                    await batch.wait()
                elif isinstance(batch, BaseException):
                    raise batch
                else:
                    done = batch.done
                    yield batch
        finally:
            self.stopped += not done


DEAD = ChildError("the rollout engine ended by signal 9")


def batch_of(lease, *indices, done=False, tokens=(5, 2), first=1.0, last=2.0):
    """What an engine answers for the samples at `indices` of a lease."""
    generated = tuple(Generated(index, tokens, tuple(-0.5 for _ in tokens), "stop") for index in indices)
    return Samples(0, lease.version, lease.digest, generated, 50.0, first, last, done)
