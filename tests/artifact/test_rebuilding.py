"""Who rebuilds a snapshot, and which segments bring all its pages."""

from __future__ import annotations

from collections import Counter

import pytest

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.rebuilding import LEAST_PROBES, SEEDERS, is_seeded, most_probes, probes, turn_of
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter
from aurora_p2p.types import ArtifactId, PeerId, StateDigest
from aurora_p2p.wire.limits import MAX_PAGE_HASHES
from tests.artifact.conftest import SEGMENT, Publisher


def members(count: int) -> list[PeerId]:
    return [PeerId(f"peer{number}") for number in range(count)]


@pytest.mark.parametrize(("count", "first"), [(1, 1), (3, 3), (4, 3), (20, 3), (200, 25)])
def test_three_members_or_one_in_eight_come_first_and_all_agree_who(count: int, first: int) -> None:
    peers, artifact = members(count), ArtifactId(bytes(32))
    turns = Counter(turn_of(me, peers, artifact) for me in peers)
    assert turns[0] == first
    assert turns == Counter(turn_of(me, peers[::-1], artifact) for me in peers)
    assert sorted(turns) == list(range(-(-count // first)))


def test_another_artifact_falls_to_others() -> None:
    peers = members(40)
    chosen = [{me for me in peers if turn_of(me, peers, ArtifactId(bytes([number]) * 32)) == 0} for number in range(30)]
    assert len(set.union(*chosen)) > 35


def test_a_few_probes_do_not_make_a_holder() -> None:
    assert is_seeded([100, 100, 7], 100)
    assert not is_seeded([100, 100, 6], 100)
    assert not is_seeded([1] * 50, 100)
    assert is_seeded([1] * SEEDERS, 1)


def published(tmp_path, segments: int, page_segments: int):
    """(header, pages, final) of an artifact that was written piece by piece."""
    publisher = Publisher()
    with ArtifactStore(tmp_path / "artifacts", 1 << 30) as store:
        header = publisher.header(0, kind="snapshot", size_bound=segments * SEGMENT)
        writer = ArtifactWriter(header, publisher.key, store, page_segments=page_segments)
        for index in range(segments):
            writer.add(bytes([index % 251]) * SEGMENT)
        writer.finish(StateDigest(bytes(32)), now=0.0)
    return writer.manifest


@pytest.mark.parametrize("segments", [1, 255, 256, 257, 1000])
def test_a_patient_writer_makes_full_pages_and_one_segment_of_each_brings_them_all(tmp_path, segments: int) -> None:
    whole = published(tmp_path, segments, MAX_PAGE_HASHES)
    assert len(whole.pages()) == -(-segments // MAX_PAGE_HASHES)
    known = Manifest(whole.signed_header, whole.publisher)
    assert probes(known) == set(), "without a final page there is nothing to ask for"
    assert whole.signed_final is not None
    known.add_final(whole.signed_final)
    asked = probes(known)
    assert asked == set(range(0, segments, MAX_PAGE_HASHES))
    assert len(asked) <= most_probes(segments)
    for index in asked:
        page = whole.page_of(index)
        assert page is not None
        known.add_page(page)
    assert known.pages_complete
    assert probes(known) == set()


def test_small_pages_are_asked_for_one_after_another_until_that_is_too_dear(tmp_path) -> None:
    whole = published(tmp_path, 40, 4)
    known = Manifest(whole.signed_header, whole.publisher)
    assert whole.signed_final is not None
    known.add_final(whole.signed_final)
    asked: set[int] = set()
    while not known.pages_complete:
        more = probes(known) - asked
        assert more, "each round asks for another page"
        asked |= more
        for index in more:
            page = whole.page_of(index)
            assert page is not None
            known.add_page(page)
    assert asked == set(range(0, 40, 4))
    assert len(asked) > most_probes(40) == LEAST_PROBES


def test_a_patient_writer_tells_of_a_segment_only_once_its_page_is_signed(tmp_path) -> None:
    publisher = Publisher()
    with ArtifactStore(tmp_path / "artifacts", 1 << 20) as store:
        writer = ArtifactWriter(publisher.header(0, kind="snapshot"), publisher.key, store, page_segments=4)
        told = [list(writer.add(bytes([index]) * SEGMENT)) for index in range(6)]
        assert told == [[], [], [], [0, 1, 2, 3], [], []]
        writer.add(b"rest")
        assert list(writer.finish(StateDigest(bytes(32)), now=0.0)) == [4, 5, 6]
        assert writer.manifest.pages_complete
