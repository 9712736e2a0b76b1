"""For whom a squash is worth making, as a host sees it from what members say."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.host.laggards import EVERY_VERSIONS, LEAST_BEHIND, STILL_SECONDS, WIDER, Laggards, Standing
from aurora_p2p.types import PeerId, Version


def members(**versions):
    return {PeerId(name): Standing(Version(version), 0.0) for name, version in versions.items()}


def test_a_member_is_a_laggard_once_it_has_stood_still_far_enough_behind():
    laggards = Laggards()
    assert laggards.look(members(a=2), Version(10), now=0.0) == []
    assert laggards.look(members(a=2), Version(10), now=STILL_SECONDS - 0.1) == []
    assert laggards.look(members(a=2), Version(10), now=STILL_SECONDS) == [2]


def test_a_member_that_moves_on_catches_up_or_leaves_is_none():
    laggards = Laggards()
    for now, standings in enumerate(
        (members(a=2, b=9), members(a=3, b=9), members(a=4), members(a=4 + LEAST_BEHIND), members())
    ):
        assert laggards.look(standings, Version(10), now=now * STILL_SECONDS * 0.9) == []
    assert laggards.look(members(a=2), Version(10), now=100.0) == [], "it is new again"


def test_the_version_that_most_wait_at_comes_first_then_the_oldest():
    laggards = Laggards()
    crowd = members(a=5, b=1, c=5, d=3, e=-1)
    laggards.look(crowd, Version(10), now=0.0)
    assert laggards.look(crowd, Version(10), now=STILL_SECONDS) == [5, 1, 3]


def test_squashes_are_some_versions_apart_and_those_from_one_base_ever_further():
    laggards, made = Laggards(), []
    for newest in range(4, 200):
        for base in laggards.look(members(a=1), Version(newest), now=newest * STILL_SECONDS)[:1]:
            laggards.made(base, Version(newest))
            made.append(newest)
    assert made
    assert all(second - first >= EVERY_VERSIONS for first, second in itertools.pairwise(made))
    assert all(second - 1 >= WIDER * (first - 1) for first, second in itertools.pairwise(made))


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-1, 40)), max_size=30))
def test_whatever_members_say_little_is_remembered_and_no_version_ahead_is_named(said):
    laggards = Laggards()
    for newest, versions in enumerate(said):
        for base in laggards.look(members(**versions), Version(newest), now=float(newest)):
            assert 0 <= base <= newest - LEAST_BEHIND
            laggards.made(base, Version(newest))
    assert len(laggards._since) <= 3
