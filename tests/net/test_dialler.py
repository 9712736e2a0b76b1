"""Whom a node dials, at which address and when, and which links it gives up."""

from __future__ import annotations

import random

from aurora_p2p.net.dialler import DIAL_SECONDS, MAX_BACKOFF_SECONDS, STABLE_SECONDS, Dialler
from aurora_p2p.net.gate import Gate
from aurora_p2p.swarm.neighbours import DRAWN, RESAMPLE_SECONDS, RESAMPLED
from aurora_p2p.swarm.roster import Peer
from aurora_p2p.types import PeerId
from aurora_p2p.wire.trust import PeerRecord
from tests.net.bulk_child import SWARM, identity

LOCAL = ("127.0.0.0/8",)


def peers(count: int) -> list[PeerId]:
    return sorted(identity(number).peer for number in range(count))


def member(peer: PeerId, *bulk: str, region: int = 0) -> Peer:
    return Peer(PeerRecord(SWARM, peer, 1, (), bulk, 1000), region, False)


def roster(*members: PeerId) -> dict[PeerId, Peer]:
    return {peer: member(peer, "127.0.0.1:1") for peer in members}


def dialler(me: PeerId) -> Dialler:
    return Dialler(me, random.Random(7), LOCAL)


def test_the_smaller_id_dials_at_once_and_the_larger_yields() -> None:
    small, large = peers(2)
    first, second = dialler(small), dialler(large)
    first.retarget(roster(large), (), 100.0)
    second.retarget(roster(small), (), 100.0)
    assert first.due(100.0) == [(large, "127.0.0.1:1")]
    assert second.due(100.0) == []
    assert second.due(second.next_deadline()) == [(small, "127.0.0.1:1")]


def test_failed_dials_wait_longer_each_time_and_try_every_address() -> None:
    me, other = peers(2)
    machine, tried, waits, failed_at = dialler(me), [], [], 0.0
    machine.retarget({other: member(other, "127.0.0.1:1", "127.0.0.1:2")}, (), 0.0)
    while len(waits) < 12:
        now = machine.next_deadline()
        for _, address in machine.due(now):
            tried.append(address)
            waits.append(now - failed_at)
            machine.failed(other, now)
            failed_at = now
        assert machine.due(now) == []
    assert set(tried) == {"127.0.0.1:1", "127.0.0.1:2"}
    assert waits[1] <= 1.0
    assert MAX_BACKOFF_SECONDS / 2 <= waits[-1] <= MAX_BACKOFF_SECONDS


def test_a_linked_peer_is_not_dialled_and_a_lost_one_is() -> None:
    me, other = peers(2)
    machine = dialler(me)
    machine.opened(other, 0.0)
    machine.retarget(roster(other), (), 1.0)
    assert machine.due(50.0) == []
    machine.closed(other, STABLE_SECONDS)
    assert machine.due(STABLE_SECONDS + 1.0) != []


def test_a_dial_without_an_answer_is_forgotten() -> None:
    me, other = peers(2)
    machine = dialler(me)
    machine.retarget(roster(other), (), 0.0)
    assert machine.due(0.0)
    assert machine.due(DIAL_SECONDS)


def test_hosts_and_drawn_neighbours_are_dialled_but_nobody_out_of_scope() -> None:
    me, *others = peers(60)
    machine = dialler(me)
    members = roster(me, *others)
    members |= {others[0]: member(others[0], "10.0.0.1:9"), others[1]: member(others[1], "router.lan:9")}
    host = others[-1]
    machine.retarget(members, {host}, 0.0)
    dialled = {peer for peer, _ in machine.due(10.0)}
    assert host in dialled
    assert len(dialled) == DRAWN + 1
    assert not dialled & {me, others[0], others[1]}
    machine.retarget(members, {host}, 20.0)
    assert {peer for peer, _ in machine.due(RESAMPLE_SECONDS - 1)} == dialled


def test_a_link_that_we_dialled_is_given_up_once_its_peer_is_exchanged_and_one_that_others_dialled_never() -> None:
    me, *others = peers(80)
    machine = dialler(me)
    machine.retarget(roster(me, *others), (), 0.0)
    chosen = {peer for peer, _ in machine.due(10.0)}
    for peer in others:
        machine.opened(peer, 10.0, dialled=peer in chosen)
    assert machine.surplus() == []
    machine.due(RESAMPLE_SECONDS)
    given_up = machine.surplus()
    assert len(given_up) == RESAMPLED
    assert set(given_up) <= chosen
    for peer in given_up:
        machine.given_up(peer)
        assert peer not in machine.surplus()
        machine.closed(peer, RESAMPLE_SECONDS)
    assert not machine.due(RESAMPLE_SECONDS + 5.0), "the peers drawn instead have links already"


def test_the_gate_knows_who_is_in_another_region() -> None:
    me, near, far = peers(3)
    machine = dialler(me)
    members = {me: member(me, region=1), near: member(near, "127.0.0.1:1", region=1), far: member(far, "127.0.0.1:1")}
    machine.retarget(members, (), 0.0)
    assert machine.is_far(far)
    assert not machine.is_far(near)


def test_a_gate_without_a_roster_waits_for_nothing() -> None:
    assert Gate(peers(1)[0], random.Random(7), LOCAL).next_deadline() == float("inf")
