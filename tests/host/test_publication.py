"""One artifact on its way out: bytes in, stored and page-signed segments out at once."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.artifact.manifest import Manifest, manifest_hash_of
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import MOST_SEGMENTS, ArtifactWriter, segment_size
from aurora_p2p.errors import ShapeError, StoreError
from aurora_p2p.host.publication import make_header, newest_of
from aurora_p2p.types import RunId, Seq
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.limits import MAX_PAGE_HASHES, MAX_SEGMENT
from tests.host.world import KEYS, SEGMENT, SWARM, begin, digest_of

RUN = RunId(bytes(16))


@pytest.fixture
def store(tmp_path):
    with ArtifactStore(tmp_path / "artifacts", 1 << 24) as store:
        yield store


def publication(store, *, size_bound=10_000, seq=1):
    header = make_header(begin(0, size_bound=size_bound), SWARM, RUN, Seq(seq), None, SEGMENT)
    return ArtifactWriter(header, KEYS.publish, store)


def received(published):
    """What a node that gets header, pages and final page knows."""
    manifest = Manifest(published.manifest.signed_header, KEYS.publish.peer)
    for page in published.manifest.pages():
        manifest.add_page(page)
    if published.manifest.signed_final is not None:
        manifest.add_final(published.manifest.signed_final)
    return manifest


def test_segments_leave_while_the_rest_is_still_being_encoded(store):
    out = publication(store)
    assert out.add(bytes(SEGMENT - 1)) == range(0)
    assert out.add(bytes(2)) == range(1)
    assert out.add(bytes(3 * SEGMENT)) == range(1, 4)
    body = store.body_path(out.artifact).read_bytes()
    assert len(body) == 4 * SEGMENT
    manifest = received(out)
    assert manifest.final is None
    for index in range(4):
        assert manifest.expected(index) == hash_of(body[index * SEGMENT : (index + 1) * SEGMENT])


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3 * SEGMENT), max_size=8))
def test_however_the_body_is_cut_a_node_can_verify_every_byte_of_it(tmp_path_factory, sizes):
    with ArtifactStore(tmp_path_factory.mktemp("store") / "artifacts", 1 << 24) as store:
        out = publication(store)
        pieces = [os.urandom(size) for size in sizes]
        indices = [index for piece in pieces for index in out.add(piece)]
        indices += out.finish(digest_of(0), now=1.0)
        body, manifest = b"".join(pieces), received(out)
        assert store.body_path(out.artifact).read_bytes() == body
        assert store.is_complete(out.artifact)
        assert indices == list(range(manifest.final.segments))
        assert manifest.pages_complete
        assert (manifest.final.length, manifest.final.digest) == (len(body), digest_of(0))
        assert sum(manifest.length_of(index) for index in indices) == len(body)
        for index in indices:
            assert manifest.expected(index) == hash_of(body[index * SEGMENT : (index + 1) * SEGMENT])


def test_more_segments_than_a_page_holds_come_with_several_pages(store):
    count = MAX_PAGE_HASHES + 3
    out = publication(store, size_bound=count * SEGMENT)
    assert out.add(os.urandom(count * SEGMENT)) == range(count)
    assert [out.manifest.page_key(index) for index in (0, MAX_PAGE_HASHES)] == [0, MAX_PAGE_HASHES]
    out.finish(digest_of(0), now=1.0)
    assert received(out).pages_complete


def test_a_body_may_fill_its_bound_and_not_one_byte_more(store):
    out = publication(store, size_bound=1000)
    out.add(bytes(1000))
    with pytest.raises(ShapeError, match="outgrows its bound of 1000 bytes"):
        out.add(b"x")
    assert out.length == 1000
    out.finish(digest_of(0), now=1.0)
    assert received(out).final.length == 1000


def test_what_does_not_fit_the_quota_is_refused_before_a_byte_is_taken(store):
    with pytest.raises(StoreError, match="does not fit"):
        publication(store, size_bound=1 << 30)
    assert store.reserved_bytes == 0


def test_what_head_says_is_what_a_node_computes_from_the_final_page(store):
    out = publication(store, seq=7)
    out.add(b"weights")
    assert newest_of(out.manifest) is None
    out.finish(digest_of(0), now=1.0)
    newest = newest_of(received(out))
    assert (newest.seq, newest.version, newest.kind, newest.digest) == (7, 0, "snapshot", digest_of(0))
    assert newest.artifact == out.artifact
    assert newest.manifest_hash == manifest_hash_of(out.manifest.signed_final)


def test_a_delta_s_header_names_its_base_and_a_snapshot_s_none(store):
    out = publication(store)
    out.finish(digest_of(0), now=1.0)
    base = newest_of(out.manifest)
    delta = make_header(begin(1, base), SWARM, RUN, Seq(2), base, SEGMENT)
    assert (delta.base_version, delta.base_manifest, delta.base_digest) == (0, base.manifest_hash, base.digest)
    snapshot = out.manifest.header
    assert (snapshot.base_version, snapshot.base_manifest, snapshot.base_digest) == (-1, b"", b"")


@given(st.integers(256, MAX_SEGMENT), st.integers(0, 2**45))
def test_segments_double_until_there_are_not_too_many_but_never_past_what_is_legal_to_send(configured, bound):
    size = segment_size(configured, bound)
    assert configured <= size <= MAX_SEGMENT
    assert size == MAX_SEGMENT or size in {configured << doublings for doublings in range(15)}
    assert size == configured or bound > min(size, -(-size // 2)) * MOST_SEGMENTS
    assert bound <= size * MOST_SEGMENTS or size == MAX_SEGMENT
