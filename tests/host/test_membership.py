"""Who is in the roster, with which record, at which epoch."""

import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.host import membership
from aurora_p2p.host.membership import GONE_SECONDS, MAX_RECORD_BYTES, Membership
from aurora_p2p.swarm.roster import open_roster
from aurora_p2p.types import Epoch, Generation, SwarmId
from aurora_p2p.wire.codec import MAX_MESSAGE, encode
from aurora_p2p.wire.control import Reason
from aurora_p2p.wire.limits import MAX_MEMBERS
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trust import Member, Roster
from tests.host.world import KEYS, NODES, SWARM, join_of, record_of


def fresh():
    return Membership(SWARM, KEYS.admit, Generation(1), Epoch(5))


def view(members):
    return open_roster(members.signed, swarm=SWARM, admit=KEYS.admit.peer)


def test_a_node_that_signs_its_own_record_becomes_a_member():
    members = fresh()
    assert members.join(NODES[0].peer, join_of(NODES[0]), now=0.0) is None
    assert NODES[0].peer in members
    assert members.renew()
    assert view(members).peers[NODES[0].peer].record == record_of(NODES[0])
    assert view(members).generation == 1


@pytest.mark.parametrize(
    ("sender", "join", "reason"),
    [
        (NODES[0], join_of(NODES[1]), Reason.BAD_RECORD),
        (NODES[0], join_of(NODES[1], signer=NODES[0]), Reason.BAD_RECORD),
        (NODES[0], join_of(NODES[0], signer=NODES[1]), Reason.BAD_RECORD),
        (NODES[0], join_of(NODES[0], swarm=SwarmId(NODES[3].peer)), Reason.WRONG_SWARM),
    ],
    ids=["another's record", "signed for another", "signed by another", "another swarm"],
)
def test_nobody_joins_with_a_record_that_is_not_its_own(sender, join, reason):
    members = fresh()
    refusal = members.join(sender.peer, join, now=0.0)
    assert refusal.reason is reason
    assert refusal.detail
    assert members.peers == ()
    assert not members.renew() or len(view(members)) == 0


def test_a_record_for_another_swarm_is_refused():
    members = fresh()
    join = join_of(NODES[0])
    record = record_of(NODES[0], swarm=SwarmId(NODES[3].peer))
    refusal = members.join(NODES[0].peer, type(join)(SWARM, seal(NODES[0], record), 1, 1, bytes(32)), now=0.0)
    assert refusal.reason is Reason.BAD_RECORD


def test_a_forged_signature_is_refused():
    join = join_of(NODES[0])
    forged = type(join)(SWARM, Signed(join.record.signer, join.record.body, bytes(64)), 1, 1, bytes(32))
    assert fresh().join(NODES[0].peer, forged, now=0.0).reason is Reason.BAD_RECORD


def test_a_newer_record_replaces_an_older_one_and_never_the_other_way_round():
    members = fresh()
    for seq in (2, 3, 1, 3):
        assert members.join(NODES[0].peer, join_of(NODES[0], seq), now=0.0) is None
    assert members.renew()
    assert view(members).peers[NODES[0].peer].record.seq == 3
    assert len(view(members)) == 1


def test_the_epoch_grows_only_when_something_changed():
    members = fresh()
    members.join(NODES[0].peer, join_of(NODES[0]), now=0.0)
    assert members.renew()
    first = members.epoch
    assert not members.renew()
    members.join(NODES[0].peer, join_of(NODES[0]), now=1.0)
    assert not members.renew()
    assert members.epoch == first == view(members).epoch == 6
    members.join(NODES[0].peer, join_of(NODES[0], 2), now=1.0)
    assert members.renew()
    assert members.epoch == view(members).epoch == 7


def test_a_full_roster_turns_strangers_away_for_a_while_but_serves_its_members(monkeypatch):
    monkeypatch.setattr(membership, "MAX_MEMBERS", 2)
    members = fresh()
    for node in NODES[:2]:
        assert members.join(node.peer, join_of(node), now=0.0) is None
    refusal = members.join(NODES[2].peer, join_of(NODES[2]), now=0.0)
    assert (refusal.reason, refusal.retry_seconds) == (Reason.ROSTER_FULL, GONE_SECONDS)
    assert members.join(NODES[0].peer, join_of(NODES[0], 2), now=0.0) is None


def test_a_member_that_shows_no_life_leaves_and_the_others_stay():
    members = fresh()
    members.add_self(KEYS.node, record_of(KEYS.node), now=0.0)
    for node in NODES[:2]:
        members.join(node.peer, join_of(node), now=0.0)
    members.renew()
    members.seen([NODES[1].peer, "a stranger"], now=GONE_SECONDS)
    assert members.expire(now=GONE_SECONDS) == []
    assert members.expire(now=GONE_SECONDS + 1) == [NODES[0].peer]
    assert set(members.peers) == {KEYS.node.peer, NODES[1].peer}
    assert members.renew()
    assert NODES[0].peer not in view(members)


def test_the_host_itself_is_a_member_that_never_leaves():
    members = fresh()
    members.add_self(KEYS.node, record_of(KEYS.node), now=0.0)
    assert members.expire(now=1e9) == []
    members.renew()
    assert KEYS.node.peer in view(members)


def test_who_left_may_come_back_with_any_record():
    members = fresh()
    members.join(NODES[0].peer, join_of(NODES[0], 9), now=0.0)
    members.expire(now=GONE_SECONDS + 1)
    assert members.join(NODES[0].peer, join_of(NODES[0], 1), now=100.0) is None
    assert NODES[0].peer in members


def test_a_record_that_would_make_the_roster_too_long_for_a_message_is_refused():
    long = tuple(f"/ip4/127.0.0.1/tcp/{4000 + index}{'/' * 200}" for index in range(16))
    join = join_of(NODES[0], control=long)
    assert len(join.record.body) > MAX_RECORD_BYTES
    refusal = fresh().join(NODES[0].peer, join, now=0.0)
    assert refusal.reason is Reason.BAD_RECORD
    assert "fewer addresses" in refusal.detail


def test_the_largest_roster_of_the_largest_records_is_one_message():
    record = Signed(NODES[0].peer, bytes(MAX_RECORD_BYTES), bytes(64))
    roster = Roster(SWARM, Generation(2**62), Epoch(2**62), tuple(Member(record, 7, True) for _ in range(MAX_MEMBERS)))
    sealed = Signed(KEYS.admit.peer, encode(roster), bytes(64))
    assert len(encode(sealed)) + 1024 < MAX_MESSAGE


# ---- networks


def crowd(members, count, bulk="198.18.5.7:4102", ip=""):
    """So many strangers ask to join from one network; the refusals."""
    nodes = [Identity(bytes([100 + index]) * 32) for index in range(count)]
    return [members.join(node.peer, join_of(node, bulk=(bulk,)), ip=ip, now=0.0) for node in nodes]


def test_one_network_has_only_so_many_members(monkeypatch):
    monkeypatch.setattr(membership, "MAX_OF_NETWORK", 3)
    members = fresh()
    assert crowd(members, 3) == [None] * 3
    refusal = members.join(NODES[0].peer, join_of(NODES[0], bulk=("198.18.5.200:1",)), now=0.0)
    assert (refusal.reason, refusal.retry_seconds) == (Reason.NETWORK_FULL, GONE_SECONDS)
    assert "198.18.5.0/24" in refusal.detail
    assert members.join(NODES[0].peer, join_of(NODES[0], bulk=("198.18.6.1:1",)), now=0.0) is None


def test_a_network_counts_by_where_connections_come_from_whatever_records_say(monkeypatch):
    monkeypatch.setattr(membership, "MAX_OF_NETWORK", 3)
    members = fresh()
    assert crowd(members, 3, bulk="203.0.113.9:1", ip="2001:db8:1:2::3") == [None] * 3
    join = join_of(NODES[0], bulk=())
    assert members.join(NODES[0].peer, join, ip="2001:db8:1:ffff::9", now=0.0).reason is Reason.NETWORK_FULL
    assert members.join(NODES[0].peer, join, ip="2001:db8:2::9", now=0.0) is None


def test_members_of_a_full_network_may_join_again_and_those_who_leave_make_room(monkeypatch):
    monkeypatch.setattr(membership, "MAX_OF_NETWORK", 3)
    members = fresh()
    crowd(members, 3)
    assert crowd(members, 3) == [None] * 3
    members.expire(now=GONE_SECONDS + 1)
    assert members.join(NODES[0].peer, join_of(NODES[0], bulk=("198.18.5.1:1",)), now=100.0) is None


def test_a_member_cannot_move_into_a_full_network(monkeypatch):
    monkeypatch.setattr(membership, "MAX_OF_NETWORK", 3)
    members = fresh()
    members.join(NODES[0].peer, join_of(NODES[0], bulk=("198.18.6.1:1",)), now=0.0)
    crowd(members, 3)
    moved = members.join(NODES[0].peer, join_of(NODES[0], 2, bulk=("198.18.5.1:1",)), now=0.0)
    assert moved.reason is Reason.NETWORK_FULL
    members.renew()
    assert view(members).peers[NODES[0].peer].record.bulk == ("198.18.6.1:1",)


def test_an_old_record_does_not_take_a_member_out_of_the_count(monkeypatch):
    monkeypatch.setattr(membership, "MAX_OF_NETWORK", 1)
    members = fresh()
    assert members.join(NODES[0].peer, join_of(NODES[0], 2, bulk=("198.18.5.1:1",)), now=0.0) is None
    assert members.join(NODES[0].peer, join_of(NODES[0], 1, bulk=()), now=0.0) is None
    late = members.join(NODES[1].peer, join_of(NODES[1], bulk=("198.18.5.2:1",)), now=0.0)
    assert late.reason is Reason.NETWORK_FULL


def test_any_number_of_a_local_network_may_join(monkeypatch):
    monkeypatch.setattr(membership, "MAX_OF_NETWORK", 3)
    members = Membership(SWARM, KEYS.admit, Generation(1), Epoch(5), ("198.18.0.0/15",))
    assert crowd(members, 9, ip="198.18.5.7") == [None] * 9


# ---- regions


def test_new_regions_are_in_the_next_roster_and_the_same_ones_make_none():
    members = fresh()
    members.add_self(KEYS.node, record_of(KEYS.node), now=0.0)
    for node in NODES[:2]:
        members.join(node.peer, join_of(node), now=0.0)
    members.renew()
    assert members.move({KEYS.node.peer: 1, NODES[0].peer: 1, NODES[1].peer: 4, "a stranger": 7})
    assert members.renew()
    regions = {peer: member.region for peer, member in view(members).peers.items()}
    assert regions == {KEYS.node.peer: 1, NODES[0].peer: 1, NODES[1].peer: 4}
    assert not members.move({KEYS.node.peer: 1, NODES[0].peer: 1, NODES[1].peer: 4})
    assert not members.renew()


def test_who_has_just_joined_is_where_the_host_is():
    members = fresh()
    members.add_self(KEYS.node, record_of(KEYS.node), now=0.0)
    members.move({KEYS.node.peer: 3})
    members.join(NODES[0].peer, join_of(NODES[0]), now=0.0)
    assert members.view()[NODES[0].peer].region == 3
