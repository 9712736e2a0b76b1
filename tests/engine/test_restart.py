"""Loading a snapshot and what follows it at once: the weights of one commit after the other, or a named refusal."""

from __future__ import annotations

import msgspec
import pytest

from aurora_p2p.engine.hf import HfEngine
from aurora_p2p.engine.simulated import SimulatedEngine
from aurora_p2p.errors import CheckpointError, DigestMismatch, StoreError, WireError
from aurora_p2p.types import StateDigest
from aurora_p2p.wire.fold import Source

ENGINES = pytest.mark.parametrize("make", [HfEngine, lambda: SimulatedEngine(1e6)], ids=["hf", "simulated"])


def sources(artifacts):
    return [Source(one.header, str(one.body), one.digest) for one in artifacts]


@ENGINES
def test_what_is_loaded_at_once_is_what_was_committed_one_by_one(run, make):
    first, *rest = [run.snapshot(), *(run.delta(share=0.2) for _ in range(5))]
    slow, quick = make(), make()
    slow.load(*first)
    for artifact in rest:
        slow.stage(*artifact)
        slow.commit(artifact.header.version, audit=True)
    done = quick.load(*first, sources(rest))
    assert (done.version, done.digest, done.audited) == (5, run.digest, True)
    assert quick.audit() == slow.audit()
    following = run.delta()
    for engine in (slow, quick):
        engine.stage(*following)
        assert engine.commit(following.header.version, audit=True).digest == run.digest


@ENGINES
def test_a_load_that_fails_anywhere_leaves_what_was_served(run, make):
    first, second, third = run.snapshot(), run.delta(), run.delta()
    engine = make()
    engine.load(*first)
    served = engine.served
    two, three = sources([second, third])
    for broken, error in (
        ([three], DigestMismatch),
        ([two, two], DigestMismatch),
        ([two, msgspec.structs.replace(three, digest=StateDigest(bytes(32)))], DigestMismatch),
        ([msgspec.structs.replace(two, header=msgspec.structs.replace(two.header, layout=bytes(32)))], CheckpointError),
        ([msgspec.structs.replace(two, body=str(first.body))], (WireError, DigestMismatch)),
        ([msgspec.structs.replace(two, body=str(first.body) + "-gone")], StoreError),
    ):
        with pytest.raises(error):
            engine.load(*first, broken)
        assert engine.served == served
    assert engine.audit().digest == served.digest
    assert engine.load(*first, [two, three]).digest == run.digest
