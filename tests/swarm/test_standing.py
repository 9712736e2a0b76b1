"""What a machine tells of its peers: read-only, and true after bans, stalls and lost links."""

from aurora_p2p.swarm import events as ev
from tests.swarm.world import HOST, A, B, Bench, C, Published

ONE = Published.make()


def test_a_fresh_link_stands_well_and_a_host_is_named() -> None:
    standings = Bench(A, HOST).machine.standings()
    assert {peer: one.is_host for peer, one in standings.items()} == {A: False, HOST: True}
    assert (standings[A].weight, standings[A].strikes, standings[A].stalls, standings[A].asked) == (1.0, 0, 0, 0)


def test_what_is_asked_of_a_peer_is_told_until_it_arrives() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    assert bench.machine.standings()[A].asked == 1
    bench.do(ONE.segment_in(A, 0))
    assert bench.machine.standings()[A].asked == 0


def test_a_banned_peer_has_no_standing_and_a_strike_when_it_comes_back() -> None:
    bench = Bench(A, B)
    bench.fetch(ONE, A, B)
    bench.have(ONE, A, 0)
    [ban] = [e for e in bench.do(ONE.segment_in(A, 0, good=False)) if isinstance(e, ev.Banned)]
    assert {*bench.machine.standings()} == {B}
    bench.pass_time(ban.seconds + 1)
    bench.do(ev.LinkUp(A))
    assert bench.machine.standings()[A].strikes == 1
    assert bench.machine.standings()[B].strikes == 0


def test_a_silent_peer_has_stalled() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0, 1)
    bench.pass_time(60.0)
    standing = bench.machine.standings()[A]
    assert standing.stalls > 0
    assert standing.snubbed


def test_the_reach_of_an_artifact_grows_with_what_peers_announce_until_it_is_known() -> None:
    bench = Bench(A, C)
    assert bench.machine.reach_of(ONE.artifact) == (0, 0)
    bench.fetch(ONE, A, final=False)
    bench.have(ONE, A, 0, 1, 2)
    assert bench.machine.reach_of(ONE.artifact) == (0, 3)
    bench.do(ONE.segment_in(A, 1))
    bench.do(ev.Stored(ONE.artifact, 1))
    assert bench.machine.reach_of(ONE.artifact) == (0b10, 3)
    bench.fetch(ONE, C)
    assert bench.machine.reach_of(ONE.artifact) == (0b10, 8)


def test_looking_changes_nothing() -> None:
    bench = Bench(A)
    bench.fetch(ONE, A)
    bench.have(ONE, A, 0)
    due = bench.machine.next_deadline()
    assert bench.machine.standings() == bench.machine.standings()
    assert bench.machine.next_deadline() == due
