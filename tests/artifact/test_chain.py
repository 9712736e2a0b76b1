from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.artifact.chain import Candidate, Checkpoint, catch_up
from aurora_p2p.types import ArtifactId, ManifestHash, StateDigest, Version

FULL, SMALL = 1000, 100


def checkpoint(version: int, *, fork: int = 0) -> Checkpoint:
    mark = bytes([version, fork]) * 16
    return Checkpoint(Version(version), ManifestHash(mark), StateDigest(mark[::-1]))


def snapshot(publisher, version: int, missing: int = FULL) -> Candidate:
    header = publisher.header(version, kind="snapshot", seq=100 + version)
    return Candidate(ArtifactId(b"s" * 31 + bytes([version])), header, checkpoint(version), missing)


def delta(publisher, version: int, missing: int = SMALL, *, base: Checkpoint | None = None, seq=None) -> Candidate:
    base = base or checkpoint(version - 1)
    header = publisher.header(version, seq=seq, base=base.manifest, digest=base.digest)
    return Candidate(ArtifactId(b"d" * 31 + bytes([version])), header, checkpoint(version), missing)


def versions(route) -> list[str]:
    return [f"{one.header.kind[0]}{one.header.version}" for one in route]


def test_a_node_with_nothing_takes_the_newest_snapshot_and_the_deltas_after_it(publisher):
    known = [snapshot(publisher, 0), *(delta(publisher, v) for v in range(1, 8)), snapshot(publisher, 5)]
    assert versions(catch_up(None, known)) == ["s5", "d6", "d7"]
    assert catch_up(None, known[1:4]) == ()


def test_a_node_close_behind_takes_the_deltas(publisher):
    known = [snapshot(publisher, 5), *(delta(publisher, v) for v in range(1, 8))]
    assert versions(catch_up(checkpoint(4), known)) == ["d5", "d6", "d7"]
    assert catch_up(checkpoint(7), known) == ()


def test_a_chain_dearer_than_half_the_snapshot_route_is_not_taken(publisher):
    known = [snapshot(publisher, 6), *(delta(publisher, v, 100) for v in range(1, 8))]
    assert versions(catch_up(checkpoint(1), known)) == ["s6", "d7"]
    assert versions(catch_up(checkpoint(2), known)) == ["d3", "d4", "d5", "d6", "d7"]


def test_an_old_snapshot_does_not_compete_with_the_deltas_onward(publisher):
    known = [snapshot(publisher, 0), *(delta(publisher, v, 900) for v in range(1, 4))]
    assert versions(catch_up(checkpoint(1), known)) == ["d2", "d3"]


def test_a_gap_or_a_forked_base_ends_the_chain(publisher):
    gap = [delta(publisher, v) for v in (2, 3, 5)]
    assert versions(catch_up(checkpoint(1), gap)) == ["d2", "d3"]
    assert catch_up(checkpoint(1, fork=1), gap) == ()
    half = Checkpoint(Version(1), checkpoint(1).manifest, StateDigest(bytes(32)))
    assert catch_up(half, gap) == ()
    assert versions(catch_up(checkpoint(1), [*gap, snapshot(publisher, 4)])) == ["s4", "d5"]


def test_what_is_still_in_flight_is_joined_by_version(publisher):
    first, second = delta(publisher, 2), delta(publisher, 3)
    open_end = Candidate(first.artifact, first.header, Checkpoint(Version(2), None, None), SMALL)
    assert versions(catch_up(checkpoint(1), [second, open_end])) == ["d2", "d3"]


def test_of_two_publications_of_one_version_the_later_is_taken(publisher):
    old, new = delta(publisher, 2, seq=5), delta(publisher, 2, seq=9)
    assert catch_up(checkpoint(1), [new, old]) == (new,)


@given(
    held=st.none() | st.integers(0, 9),
    snapshots=st.sets(st.integers(0, 9)),
    deltas=st.sets(st.integers(1, 9)),
    sizes=st.lists(st.integers(0, 2000), min_size=10, max_size=10),
)
def test_every_plan_is_a_chain_that_leads_forward_as_far_as_any(publisher_once, held, snapshots, deltas, sizes):
    known = [snapshot(publisher_once, v, sizes[v]) for v in snapshots]
    known += [delta(publisher_once, v, sizes[v]) for v in deltas]
    start = None if held is None else checkpoint(held)
    route = catch_up(start, known)
    here = start
    for one in route:
        if one.header.kind == "delta":
            assert here is not None
            assert (one.header.base_manifest, one.header.base_digest) == (here.manifest, here.digest)
        assert here is None or one.header.version > here.version
        here = one.reaches
    newest = max(snapshots, default=-1)
    assert here is not None or not snapshots
    assert here is None or here.version >= newest
    assert here is None or here.version + 1 not in deltas
