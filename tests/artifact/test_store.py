from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aurora_p2p.artifact.retention import RETAIN_ARTIFACTS, RETAIN_MOST, RETAIN_SECONDS
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import ShapeError, StoreError

QUOTA = 1 << 26
ALL = set(range(11))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    with ArtifactStore(root, QUOTA) as store:
        yield store


def complete(store, published, fetch, now=0.0):
    fetch(store, published)
    store.save_final(published.artifact, published.final)
    store.finish(published.artifact, now=now)


def reopened(root):
    store = ArtifactStore(root, QUOTA)
    return store, store.load(now=0.0)


def test_segments_in_any_order_become_the_artifact(store, publisher, fetch):
    published = publisher.publish(3)
    fetch(store, published, [10, 3, 0, 7, 1, 2, 9, 8, 4, 6, 5])
    store.save_final(published.artifact, published.final)
    store.finish(published.artifact, now=0.0)
    assert store.body_path(published.artifact).read_bytes() == published.body
    assert store.is_complete(published.artifact)
    assert store.verify(published.artifact) == ALL
    assert store.reserved_bytes == len(published.body)


def test_the_publisher_appends_its_body(store, publisher):
    published = publisher.publish(3)
    artifact = store.create(published.header)
    for start in range(0, len(published.body), 1000):
        store.append(artifact, published.body[start : start + 1000])
    for page in published.pages:
        store.save_page(artifact, page)
    store.save_final(artifact, published.final)
    store.finish(artifact, now=0.0)
    assert store.body_path(artifact).read_bytes() == published.body
    assert store.verify(artifact) == ALL


def test_an_artifact_is_not_finished_with_a_hole_or_without_its_final_page(store, publisher, fetch):
    published = publisher.publish(3)
    fetch(store, published, range(10))
    with pytest.raises(ShapeError, match="save_final"):
        store.finish(published.artifact, now=0.0)
    store.save_final(published.artifact, published.final)
    with pytest.raises(ShapeError, match="10 of 11"):
        store.finish(published.artifact, now=0.0)
    assert not store.is_complete(published.artifact)


def test_a_complete_artifact_is_immutable(store, publisher, fetch, tmp_path):
    published = publisher.publish(3)
    complete(store, published, fetch)
    source = tmp_path / "late"
    source.write_bytes(published.segment(0))
    with pytest.raises(ShapeError, match="immutable"):
        store.put(published.artifact, 0, source)
    assert source.exists()


def test_a_restart_finds_complete_and_half_fetched_artifacts(root, publisher, fetch):
    whole, half = publisher.publish(1), publisher.publish(2)
    with ArtifactStore(root, QUOTA) as store:
        fetch(store, half, [0, 4, 10])
        store.save_final(half.artifact, half.final)
        complete(store, whole, fetch)
    store, found = reopened(root)
    with store:
        assert [(manifest.header.version, have) for manifest, have in found] == [(1, ALL), (2, {0, 4, 10})]
        assert found[0][0].pages_complete
        fetch(store, half, ALL - {0, 4, 10})
        store.finish(half.artifact, now=0.0)
        assert store.body_path(half.artifact).read_bytes() == half.body


def test_after_a_crash_torn_and_rotten_segments_are_missing_and_nothing_else(root, publisher, fetch):
    published = publisher.publish(1)
    with ArtifactStore(root, QUOTA) as store:
        fetch(store, published, range(9))
        body = store.body_path(published.artifact)
    content = bytearray(body.read_bytes())
    content[5 * 256 + 3] ^= 1
    body.write_bytes(content[: 8 * 256 + 100])
    store, [(_, have)] = reopened(root)
    store.close()
    assert have == set(range(8)) - {5}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(cut=st.integers(0, 2000), flip=st.integers(0, 2000))
def test_a_damaged_page_log_keeps_its_sound_beginning_and_can_go_on(tmp_path_factory, publisher, cut, flip):
    root = tmp_path_factory.mktemp("store")
    published = publisher.publish(1)
    with ArtifactStore(root, QUOTA) as store:
        artifact = store.create(published.header)
        store.append(artifact, published.body)
        for page in published.pages:
            store.save_page(artifact, page)
    log = root / artifact.hex() / "pages"
    content = bytearray(log.read_bytes())
    content[flip % len(content)] ^= 1
    log.write_bytes(content[: cut % (len(content) + 1)])
    store, [(manifest, have)] = reopened(root)
    with store:
        assert have == {index for index in ALL if manifest.expected(index) is not None}
        for page in published.pages:
            store.save_page(artifact, page)
    store, [(manifest, have)] = reopened(root)
    store.close()
    assert have == ALL


def test_a_complete_artifact_whose_disk_rots_is_fetched_again_where_it_rotted(root, publisher, fetch):
    published = publisher.publish(1)
    with ArtifactStore(root, QUOTA) as store:
        complete(store, published, fetch)
        body = store.body_path(published.artifact)
        content = bytearray(body.read_bytes())
        content[700] ^= 8
        body.write_bytes(content)
        assert store.verify(published.artifact) == ALL - {2}
        assert not store.is_complete(published.artifact)
        fetch(store, published, [2])
        store.finish(published.artifact, now=0.0)
        assert store.verify(published.artifact) == ALL
        body.write_bytes(content[:-1])
    store, [(_, have)] = reopened(root)
    store.close()
    assert have == ALL - {2, 10}


def test_folders_that_are_no_artifacts_are_removed_or_left_alone(root, publisher, fetch):
    published = publisher.publish(1)
    with ArtifactStore(root, QUOTA) as store:
        complete(store, published, fetch)
    (root / ("ab" * 32)).mkdir()
    (root / published.artifact.hex()).rename(root / ("cd" * 32))
    (root / ("ef" * 32 + ".gone")).mkdir()
    (root / "notes").mkdir()
    store, found = reopened(root)
    store.close()
    assert found == []
    assert sorted(path.name for path in root.iterdir()) == ["lock", "notes"]


def test_space_is_reserved_by_the_size_bound_before_the_first_byte(root, publisher, fetch):
    with ArtifactStore(root, 5000) as store:
        first = publisher.publish(1, size_bound=4000)
        store.create(first.header)
        second = publisher.publish(2, b"body", size_bound=2000)
        with pytest.raises(StoreError, match=r"up to 2,000 bytes does not fit: 1,000 of 5,000"):
            store.create(second.header)
        complete(store, first, fetch)
        assert store.create(second.header) == second.artifact
        huge = publisher.publish(3, b"body", size_bound=1 << 61)
        store.quota_bytes = 1 << 62
        with pytest.raises(StoreError, match="the disk"):
            store.create(huge.header)
        assert len(list(root.iterdir())) == 3


def test_no_segment_may_pass_the_bound_or_the_segment_size(store, publisher, tmp_path):
    published = publisher.publish(1, size_bound=3000)
    store.create(published.header)
    source = tmp_path / "segment"
    source.write_bytes(bytes(256))
    with pytest.raises(ShapeError, match="bound"):
        store.put(published.artifact, 1 << 19, source)
    source.write_bytes(bytes(257))
    with pytest.raises(ShapeError, match="257 bytes"):
        store.put(published.artifact, 0, source)
    with pytest.raises(ShapeError, match="bound"):
        store.append(published.artifact, bytes(3001))
    assert store.body_path(published.artifact).stat().st_size == 0


def test_a_full_disk_loses_nothing(store, publisher, fetch, tmp_path):
    published = publisher.publish(1)
    fetch(store, published, range(3))
    body = store.body_path(published.artifact)
    kept = body.rename(tmp_path / "kept")
    body.symlink_to("/dev/full")
    source = tmp_path / "segment"
    source.write_bytes(published.segment(3))
    with pytest.raises(StoreError, match="No space left"):
        store.put(published.artifact, 3, source)
    assert source.read_bytes() == published.segment(3)
    kept.replace(body)
    assert store.verify(published.artifact) == {0, 1, 2}


def test_a_store_has_one_owner(root):
    program = (
        "import sys; from pathlib import Path; from aurora_p2p.artifact.store import ArtifactStore;"
        "s = ArtifactStore(Path(sys.argv[1]), 1); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        owner.stdout.readline()
        with pytest.raises(StoreError, match=f"in use by pid {owner.pid}") as refused:
            ArtifactStore(root, QUOTA)
        assert str(owner.pid) in refused.value.hint
        owner.kill()
    ArtifactStore(root, QUOTA).close()


def test_a_pinned_artifact_is_not_retired(store, publisher, fetch):
    published = publisher.publish(1)
    complete(store, published, fetch)
    store.pin(published.artifact)
    assert not store.retire(published.artifact)
    assert store.body_path(published.artifact).exists()
    store.unpin(published.artifact)
    assert store.retire(published.artifact)
    assert store.retire(published.artifact)
    with pytest.raises(StoreError, match="not in the store"):
        store.body_path(published.artifact)
    assert store.reserved_bytes == 0


def test_retention_keeps_the_newest_the_young_and_the_base_with_its_deltas(store, publisher, fetch):
    kinds = {0: "snapshot", 3: "snapshot"}
    published = [publisher.publish(version, kind=kinds.get(version, "delta")) for version in range(14)]
    for version, one in enumerate(published):
        complete(store, one, fetch, now=float(version))
    fetching = publisher.publish(20)
    fetch(store, fetching, [0])
    assert store.prune(now=13.0) == []
    store.pin(published[1].artifact)
    assert store.prune(now=RETAIN_SECONDS + 1.0) == [published[0].artifact]
    assert store.prune(now=RETAIN_SECONDS + 100.0) == [published[2].artifact]
    store.unpin(published[1].artifact)
    assert store.prune(now=RETAIN_SECONDS + 100.0) == [published[1].artifact]
    assert len(published) - 3 > RETAIN_ARTIFACTS
    newer = publisher.publish(14, kind="snapshot")
    complete(store, newer, fetch, now=RETAIN_SECONDS)
    pruned = store.prune(now=3 * RETAIN_SECONDS)
    assert pruned == [one.artifact for one in published[3 : 14 - RETAIN_ARTIFACTS + 1]]
    assert store.body_path(fetching.artifact).exists()


def test_a_run_of_many_young_artifacts_keeps_a_bounded_number_and_never_a_delta_that_a_restart_needs(
    store, publisher, fetch
):
    published = [
        publisher.publish(version, kind="delta" if version else "snapshot") for version in range(RETAIN_MOST + 6)
    ]
    for one in published:
        complete(store, one, fetch, now=0.0)
    assert store.prune(now=1.0) == [], "all are needed to rebuild the newest version"
    newer = publisher.publish(len(published), kind="snapshot")
    complete(store, newer, fetch, now=1.0)
    assert store.prune(now=1.0) == [one.artifact for one in published[: len(published) + 1 - RETAIN_MOST]]
