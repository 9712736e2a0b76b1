"""A store whose disk refuses in the middle of a write."""

from __future__ import annotations

import pytest

from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import DiskFullError, StoreError
from aurora_p2p.local import faults
from aurora_p2p.local.faults import Armed, Plan
from aurora_p2p.testing.faults import disk_error, disk_full
from tests.artifact.conftest import SEGMENT, Publisher

QUOTA = 1 << 26


@pytest.fixture
def arm(monkeypatch):
    """Arm this process for one test."""
    return lambda *rules: monkeypatch.setattr(faults, "_armed", Armed(Plan(tuple(rules)), "node"))


@pytest.fixture
def published():
    return Publisher().publish(3)


def put(store, published, folder, index):
    source = folder / f"{index}.payload"
    source.write_bytes(published.segment(index))
    store.put(published.artifact, index, source)


def test_a_page_that_did_not_fit_on_the_disk_hides_none_of_those_after_it(tmp_path, arm, published):
    first, second, third = published.pages
    with ArtifactStore(tmp_path / "store", QUOTA) as store:
        store.create(published.header)
        store.save_page(published.artifact, first)
        arm(disk_full("write", "*/pages"))
        with pytest.raises(DiskFullError):
            store.save_page(published.artifact, second)
        store.save_page(published.artifact, third)
        store.save_page(published.artifact, second)
    with ArtifactStore(tmp_path / "store", QUOTA) as again:
        ((manifest, _),) = again.load(now=0.0)
        assert sorted(page.signature for page in manifest.pages()) == sorted(p.signature for p in published.pages)


def test_a_segment_that_did_not_fit_is_put_again_and_the_artifact_is_whole(tmp_path, arm, published):
    arm(disk_full("write", "*/body", hit=4), disk_error("fsync", "*/body"))
    with ArtifactStore(tmp_path / "store", QUOTA) as store:
        store.create(published.header)
        for page in published.pages:
            store.save_page(published.artifact, page)
        for index in range(len(published.body) // SEGMENT + 1):
            try:
                put(store, published, tmp_path, index)
            except DiskFullError:
                assert (tmp_path / f"{index}.payload").exists()  # kept: the caller decides
                put(store, published, tmp_path, index)
        store.save_final(published.artifact, published.final)
        with pytest.raises(StoreError):
            store.finish(published.artifact, now=0.0)
        assert not store.is_complete(published.artifact)
        store.finish(published.artifact, now=0.0)
        assert store.body_path(published.artifact).read_bytes() == published.body


@pytest.mark.parametrize("operation", ["create", "write", "fsync", "rename"])
def test_a_final_page_that_cannot_be_written_can_be_written_later(tmp_path, arm, published, operation):
    with ArtifactStore(tmp_path / "store", QUOTA) as store:
        store.create(published.header)
        arm(disk_error(operation, "*/final"))
        with pytest.raises(StoreError, match="final"):
            store.save_final(published.artifact, published.final)
        store.save_final(published.artifact, published.final)
    with ArtifactStore(tmp_path / "store", QUOTA) as again:
        ((manifest, _),) = again.load(now=0.0)
        assert manifest.signed_final == published.final
