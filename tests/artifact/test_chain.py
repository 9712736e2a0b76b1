from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from aurora_p2p.artifact.chain import Candidate, Checkpoint, catch_up
from aurora_p2p.types import ArtifactId, ManifestHash, StateDigest, Version

FULL, SMALL = 1000, 100


def checkpoint(version: int, *, fork: int = 0) -> Checkpoint:
    mark = bytes([version, fork]) * 16
    return Checkpoint(Version(version), ManifestHash(mark), StateDigest(mark[::-1]))


def snapshot(publisher, version: int, missing: int = FULL) -> Candidate:
    header = publisher.header(version, kind="snapshot", seq=100 + version)
    return Candidate(ArtifactId(b"s" * 31 + bytes([version])), header, checkpoint(version), missing)


def delta(
    publisher, version: int, missing: int = SMALL, *, base: Checkpoint | None = None, seq=None, fork: int = 0
) -> Candidate:
    base = base or checkpoint(version - 1)
    header = publisher.header(version, seq=seq, base=base.manifest, digest=base.digest)
    header = structs.replace(header, base_version=base.version)
    mark = bytes([version, base.version, fork])
    return Candidate(ArtifactId(b"d" * 29 + mark), header, checkpoint(version, fork=fork), missing)


def squash(publisher, first: int, last: int, missing: int = SMALL) -> Candidate:
    """A direct delta, published after everything else."""
    return delta(publisher, last, missing, base=checkpoint(first), seq=200 + last)


def versions(route) -> list[str]:
    """s5: the snapshot of version 5; d6: the delta from 5 to 6; d2-6: the one from 2."""
    return [name_of(one.header) for one in route]


def name_of(header) -> str:
    if header.kind == "delta" and header.base_version != header.version - 1:
        return f"d{header.base_version}-{header.version}"
    return f"{header.kind[0]}{header.version}"


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
    other = Checkpoint(Version(1), checkpoint(1).manifest, StateDigest(bytes(32)))
    assert catch_up(other, gap) == ()
    assert versions(catch_up(checkpoint(1), [*gap, snapshot(publisher, 4)])) == ["s4", "d5"]


def test_what_is_still_in_flight_is_joined_by_version(publisher):
    first, second = delta(publisher, 2), delta(publisher, 3)
    open_end = Candidate(first.artifact, first.header, Checkpoint(Version(2), None, None), SMALL)
    assert versions(catch_up(checkpoint(1), [second, open_end])) == ["d2", "d3"]


def test_of_two_publications_of_one_version_the_later_is_taken(publisher):
    old, new = delta(publisher, 2, seq=5), delta(publisher, 2, seq=9)
    assert catch_up(checkpoint(1), [new, old]) == (new,)


def test_the_digest_joins_whatever_manifest_led_to_it(publisher):
    by_snapshot = Checkpoint(Version(3), ManifestHash(b"s" * 32), checkpoint(3).digest)
    assert versions(catch_up(by_snapshot, [delta(publisher, 4), delta(publisher, 5)])) == ["d4", "d5"]


def test_of_two_states_of_one_version_each_is_continued_by_its_own_delta_only(publisher):
    ours, theirs = checkpoint(3), checkpoint(3, fork=1)
    known = [delta(publisher, 4, base=theirs, seq=9), delta(publisher, 5, base=checkpoint(4))]
    assert catch_up(ours, known) == ()
    assert versions(catch_up(theirs, known)) == ["d4", "d5"]
    forged = [delta(publisher, 4, base=ours, fork=1), delta(publisher, 5, base=checkpoint(4))]
    assert versions(catch_up(ours, forged)) == ["d4"]  # it leads to another state of 4, which d5 does not continue


def test_a_laggard_takes_the_squashed_delta_when_it_costs_less_than_the_chain(publisher):
    chain = [delta(publisher, version) for version in range(3, 9)]
    known = [*chain, squash(publisher, 2, 7, 250), snapshot(publisher, 0)]
    assert versions(catch_up(checkpoint(2), known)) == ["d2-7", "d8"]
    assert versions(catch_up(checkpoint(3), known)) == ["d4", "d5", "d6", "d7", "d8"]


def test_what_is_here_already_is_not_fetched_again_as_a_squash_or_a_newer_snapshot(publisher):
    mine = [snapshot(publisher, 0, 0), *(delta(publisher, version, 0) for version in range(1, 7))]
    published = [squash(publisher, 2, 6, 250), snapshot(publisher, 5), delta(publisher, 7)]
    assert versions(catch_up(checkpoint(4), [*mine, *published])) == ["d5", "d6", "d7"]
    assert versions(catch_up(None, [*mine, *published])) == ["s0", *(f"d{version}" for version in range(1, 8))]


def test_of_two_ways_that_cost_nothing_the_shorter_is_taken(publisher):
    known = [snapshot(publisher, 0, 0), *(delta(publisher, version, 0) for version in range(1, 6))]
    assert versions(catch_up(None, [*known, squash(publisher, 0, 4, 0)])) == ["s0", "d0-4", "d5"]


def test_a_plan_over_everything_that_may_be_known_is_made_at_once(publisher):
    known = [snapshot(publisher, 0), *(delta(publisher, version, 1) for version in range(1, 250))]
    known += [squash(publisher, first, first + 5, 4) for first in range(240)]
    assert sum(one.missing_bytes for one in catch_up(checkpoint(0), known)) == 48 * 4 + 9


@given(
    held=st.none() | st.integers(0, 9),
    snapshots=st.sets(st.integers(0, 9)),
    deltas=st.sets(st.integers(1, 9)),
    squashes=st.sets(st.tuples(st.integers(0, 7), st.integers(2, 9)).filter(lambda pair: pair[1] - pair[0] > 1)),
    sizes=st.lists(st.integers(0, 2000), min_size=10, max_size=10),
)
def test_every_plan_is_a_chain_that_leads_forward_as_far_as_any(
    publisher_once, held, snapshots, deltas, squashes, sizes
):
    known = [snapshot(publisher_once, v, sizes[v]) for v in snapshots]
    known += [delta(publisher_once, v, sizes[v]) for v in deltas]
    known += [squash(publisher_once, first, last, sizes[first]) for first, last in squashes]
    start = None if held is None else checkpoint(held)
    route = catch_up(start, known)
    here = start
    for one in route:
        if one.header.kind == "delta":
            assert here is not None
            assert (one.header.base_version, one.header.base_digest) == (here.version, here.digest)
        assert here is None or one.header.version > here.version
        here = one.reaches
    newest = max(snapshots, default=-1)
    assert here is not None or not snapshots
    assert here is None or here.version >= newest
    assert here is None or here.version + 1 not in deltas
