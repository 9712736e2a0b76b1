from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.swarm.bitset import bits, mask_of, random_bit
from aurora_p2p.swarm.picker import EXCLUDE_SECONDS, Availability, Fetch
from aurora_p2p.swarm.strikes import FIRST_BAN_SECONDS, Strikes
from aurora_p2p.wire.limits import MAX_SEGMENTS
from tests.swarm.world import HOST, A, B, C

SEGMENTS = 24
sets = st.sets(st.integers(0, SEGMENTS - 1))


@given(sets)
def test_a_set_becomes_a_mask_and_back(indices: set[int]) -> None:
    assert list(bits(mask_of(indices))) == sorted(indices)


@given(sets.filter(bool), st.integers())
def test_a_random_bit_is_one_of_the_set(indices: set[int], seed: int) -> None:
    assert random_bit(mask_of(indices), Random(seed)) in indices


def test_an_index_past_the_limit_makes_no_mask() -> None:
    with pytest.raises(ValueError, match="past the limit"):
        mask_of([MAX_SEGMENTS])


steps = st.lists(
    st.tuples(st.sampled_from(["add", "take", "drop", "suspend", "resume"]), st.sampled_from([A, B, C]), sets)
)


@given(steps)
@settings(max_examples=50, deadline=None)
def test_levels_always_count_the_unsuspended_holders(script: list[tuple[str, str, set[int]]]) -> None:
    availability = Availability(SEGMENTS)
    held: dict[str, set[int]] = {}
    suspended: set[str] = set()
    for step, peer, indices in script:
        if step == "add":
            availability.add(peer, mask_of(indices))
            held.setdefault(peer, set()).update(indices)
        elif step == "take":
            availability.take(peer, mask_of(indices))
            held.get(peer, set()).difference_update(indices)
        elif step == "drop":
            availability.drop(peer)
            held.pop(peer, None)
            suspended.discard(peer)
        elif step == "suspend":
            availability.suspend(peer)
            suspended.add(peer)
        else:
            availability.resume(peer)
            suspended.discard(peer)
        for index in range(SEGMENTS):
            count = sum(index in segments for peer, segments in held.items() if peer not in suspended)
            assert [k for k, level in enumerate(availability.levels) if level >> index & 1] == [count]


def test_the_rarest_segment_of_the_free_peers_is_picked() -> None:
    fetch = Fetch(Availability(4), catch_up=False)
    fetch.peers.add(A, 0b0111)
    fetch.peers.add(B, 0b0110)
    fetch.peers.add(C, 0b0010)
    assert fetch.pick([A, B, C], Random(1)) == 0
    assert fetch.pick([B, C], Random(1)) == 2
    assert fetch.pick([C], Random(1)) == 1
    fetch.request(C, 1)
    assert fetch.pick([C], Random(1)) is None


def test_a_host_is_asked_only_when_due_and_when_nobody_else_holds_the_segment() -> None:
    fetch = Fetch(Availability(2), catch_up=False)
    fetch.host_has(HOST, 0b11, due=5.0)
    fetch.peers.add(A, 0b01)
    assert fetch.pick_from_host(HOST, Random(1)) is None
    assert fetch.next_deadline() == 5.0
    fetch.expire(5.0)
    assert fetch.pick_from_host(HOST, Random(1)) == 1
    fetch.forget(A)
    fetch.request(HOST, 1)
    assert fetch.pick_from_host(HOST, Random(1)) == 0


def test_the_second_stall_excludes_and_time_forgives() -> None:
    fetch = Fetch(Availability(1), catch_up=False)
    fetch.peers.add(A, 1)
    fetch.stall(A, now=0.0)
    assert fetch.pick([A], Random(1)) == 0
    fetch.stall(A, now=0.0)
    assert fetch.pick([A], Random(1)) is None
    assert fetch.next_deadline() == EXCLUDE_SECONDS
    fetch.expire(EXCLUDE_SECONDS)
    assert fetch.pick([A], Random(1)) == 0
    fetch.stall(A, now=10.0)
    assert fetch.next_deadline() == 10.0 + 2 * EXCLUDE_SECONDS


def test_each_further_ban_is_longer() -> None:
    strikes = Strikes()
    assert strikes.ban(A, now=0.0) == FIRST_BAN_SECONDS
    assert strikes.is_banned(A, now=FIRST_BAN_SECONDS - 1)
    assert not strikes.is_banned(A, now=FIRST_BAN_SECONDS)
    assert not strikes.is_banned(B, now=0.0)
    assert strikes.ban(A, now=100.0) > FIRST_BAN_SECONDS
