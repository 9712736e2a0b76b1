"""Which stored artifacts are kept, and what folds are made of; the store that carries it out."""

from __future__ import annotations

from msgspec import structs

from aurora_p2p.artifact.chain import Checkpoint
from aurora_p2p.artifact.retention import RETAIN_SECONDS, Resident, expired, restart_route, spare
from aurora_p2p.artifact.routes import FOLD_VERSIONS, WriteBudget, is_due, snapshot_plan, squash_plan, way_to
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.types import ArtifactId, ManifestHash, Seq, StateDigest, Version


def digest(version, fork=0):
    return StateDigest(bytes([version, fork]) * 16)


def resident(publisher, version, *, base=None, seq=None, length=100, fork=0):
    """A snapshot, or a delta from `base`."""
    header = publisher.header(version, kind="snapshot" if base is None else "delta", seq=seq or version)
    if base is not None:
        header = structs.replace(header, base_version=Version(base), base_digest=digest(base))
    name = ArtifactId(bytes([version, 255 if base is None else base, fork]) + bytes(29))
    return Resident(name, header, ManifestHash(bytes(name)), digest(version, fork), length, 0.0)


def chain(publisher, first, last):
    return [resident(publisher, version, base=version - 1) for version in range(first, last + 1)]


def spans(artifacts):
    return [(one[1] if one[1] != 255 else None, one[0]) for one in artifacts]


def test_the_restart_set_is_the_shortest_complete_way_and_is_never_given_up(publisher):
    known = [resident(publisher, 0), *chain(publisher, 1, 20), resident(publisher, 12, base=0, seq=13)]
    assert spans(one.artifact for one in restart_route(known)) == [
        (None, 0), (0, 12), *((version - 1, version) for version in range(13, 21))
    ]  # fmt: skip
    old = expired(known, now=10 * RETAIN_SECONDS)
    assert spans(old) == [(version - 1, version) for version in range(1, 13)]
    assert {one.artifact for one in spare(known)} == set(old)


def test_what_leads_further_than_a_restart_could_go_waits_for_its_missing_piece(publisher):
    known = [resident(publisher, 0), *chain(publisher, 1, 3), *chain(publisher, 5, 30)]
    assert restart_route(known)[-1].header.version == 3
    assert expired(known, now=10 * RETAIN_SECONDS) == []
    assert spare(known) == []


def test_without_a_snapshot_nothing_is_given_up(publisher):
    known = chain(publisher, 1, 30)
    assert expired(known, now=10 * RETAIN_SECONDS) == []
    assert spare(known) == []


def test_a_squash_starts_where_the_chain_rebuilds_its_base(publisher):
    known = [resident(publisher, 0), *chain(publisher, 1, 9)]
    plan = squash_plan(known, Checkpoint(Version(4), None, digest(4)))
    assert (spans(plan.artifacts[: plan.base])[-1], spans(plan.artifacts)[-1]) == ((3, 4), (8, 9))
    assert (plan.base, len(plan.artifacts), plan.version, plan.digest) == (5, 10, 9, digest(9))
    assert squash_plan(known, Checkpoint(Version(8), None, digest(8))) is None, "a single delta leads there"
    assert squash_plan(known, Checkpoint(Version(4), None, digest(4, fork=1))) is None
    assert squash_plan(known[3:], Checkpoint(Version(4), None, digest(4))) is None, "its base cannot be rebuilt"


def test_a_snapshot_is_made_of_the_state_that_was_named_and_of_no_other_of_that_version(publisher):
    known = [resident(publisher, 0), *chain(publisher, 1, 3), resident(publisher, 3, base=1, seq=9, fork=1)]
    assert spans(snapshot_plan(known, Version(3), digest(3)).artifacts) == [(None, 0), (0, 1), (1, 2), (2, 3)]
    assert spans(snapshot_plan(known, Version(3), digest(3, fork=1)).artifacts) == [(None, 0), (0, 1), (1, 3)]
    assert snapshot_plan(known, Version(4), digest(4)) is None
    assert way_to([], Version(0), digest(0)) == ()


def test_a_fold_is_due_by_number_or_by_bytes(publisher):
    snapshot = resident(publisher, 0, length=1000)
    few, many = chain(publisher, 1, 5), chain(publisher, 1, FOLD_VERSIONS)
    assert not is_due(snapshot, [])
    assert not is_due(snapshot, few)
    assert is_due(structs_of(snapshot, 999), few)
    assert not is_due(structs_of(snapshot, 10**6), many[1:])
    assert is_due(structs_of(snapshot, 10**6), many)


def structs_of(one, length):
    return Resident(one.artifact, one.header, one.manifest, one.digest, length, one.since)


def test_what_was_written_is_paid_for_by_waiting():
    budget = WriteBudget(3600)
    assert budget.allows(0.0)
    budget.spend(100, 0.0)
    assert not budget.allows(99.0)
    assert budget.allows(100.0)
    budget.wait(50.0, 100.0)
    assert not budget.allows(149.0)
    assert not WriteBudget(0).allows(1e9)


def test_a_short_quota_gives_up_sources_oldest_first_and_only_if_that_is_enough(tmp_path, publisher, fetch):
    with ArtifactStore(tmp_path / "store", 20_000) as store:
        whole = publisher.publish(0, bytes(3000), kind="snapshot", size_bound=3000)
        published, base = [whole], whole
        for version in range(1, 6):
            final = base.manifest.final
            base = publisher.publish(version, bytes([version]) * 3000, digest=final.digest, size_bound=3000)
            published.append(base)
        newer = publisher.publish(4, bytes(2000), kind="snapshot", seq=9, size_bound=2000)
        for one in published:
            complete(store, one, fetch)
        assert store.make_room(5000) == [], "all of it is the restart set"
        # the newest snapshot stands for another state of version 4 here, so the chain stays what a restart needs
        assert store.reserved_bytes == 18_000
        store.quota_bytes = 30_000
        complete(store, newer, fetch)
        assert store.make_room(10_000) == []
        assert store.make_room(11_000) == [newer.artifact]
        assert store.make_room(1 << 40) == []


def complete(store, published, fetch):
    fetch(store, published)
    store.save_final(published.artifact, published.final)
    store.finish(published.artifact, now=0.0)


def test_a_pinned_source_is_not_given_up_and_what_is_fetching_counts_what_is_here(tmp_path, publisher, fetch):
    with ArtifactStore(tmp_path / "store", 8000) as store:
        old = publisher.publish(0, bytes(3000), kind="snapshot", size_bound=3000)
        new = publisher.publish(1, bytes(3000), kind="snapshot", size_bound=3000)
        complete(store, old, fetch)
        complete(store, new, fetch)
        store.pin(old.artifact)
        assert store.make_room(4000) == []
        store.unpin(old.artifact)
        assert store.make_room(4000) == [old.artifact]
        flying = publisher.publish(2, bytes(1000), size_bound=1000, seq=Seq(5))
        fetch(store, flying, [0, 2])
        assert store.held_bytes(flying.artifact) == 2 * 256
        assert store.held_bytes(old.artifact) == 0
