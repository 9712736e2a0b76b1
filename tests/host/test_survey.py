"""Who is near whom, as the host hears it: what it takes, what it hands on, and how often."""

from functools import partial

import pytest
import trio
import trio.testing

from aurora_p2p.errors import UsageError
from aurora_p2p.host.survey import (
    CHANGE_SECONDS,
    LOOK_SECONDS,
    REPORT_SECONDS,
    Survey,
    keep_surveyed,
    read_pins,
)
from aurora_p2p.wire.control import Distance, Distances, Noted, Reason, Refusal
from tests.host.world import KEYS, NODES, join_of, open_host

HOST = KEYS.node.peer
A, B, C, D = (node.peer for node in NODES)
MEMBERS = [HOST, A, B, C, D]
RTTS = {A: 0.005, B: 0.005, C: 0.08, D: 0.08}


def said(**milliseconds):
    names = {"a": A, "b": B, "c": C, "d": D}
    return Distances(tuple(Distance(names[name], rtt) for name, rtt in milliseconds.items()))


def told():
    """Two members beside the host and two across an ocean, who have all reported."""
    survey = Survey(HOST, {})
    survey.report(A, said(b=5, c=80, d=80), now=0.0)
    survey.report(B, said(a=5, c=80, d=80), now=0.0)
    survey.report(C, said(a=80, b=80, d=5), now=0.0)
    survey.report(D, said(a=80, b=80, c=5), now=0.0)
    return survey


def test_reports_and_the_hosts_own_round_trips_make_regions():
    survey = told()
    survey.prepare(RTTS, MEMBERS)
    assert survey.assign(MEMBERS) == {HOST: 0, A: 0, B: 0, C: 1, D: 1}


def test_a_member_that_reports_too_often_is_refused_by_name_and_its_last_word_stays():
    survey = told()
    refusal = survey.report(A, said(c=0), now=REPORT_SECONDS - 1)
    assert (refusal.reason, refusal.retry_seconds) == (Reason.TOO_OFTEN, 1.0)
    assert survey.report(A, said(b=5), now=REPORT_SECONDS) is None
    survey.prepare(RTTS, MEMBERS)
    assert survey.assign(MEMBERS)[A] == 0


def test_who_has_left_may_report_again_at_once():
    survey = told()
    survey.prepare(RTTS, [HOST, B])
    assert survey.report(A, said(b=5), now=0.1) is None


def survey_for(seconds, survey, look, moves):
    """Run the task; the times at which it handed over regions, and what."""
    taken = []

    def move(regions):
        taken.append((trio.current_time() - start, regions))
        return moves(regions)

    start = 0.0

    async def main():
        nonlocal start
        start = trio.current_time()
        with trio.move_on_after(seconds):
            await keep_surveyed(survey, look, move)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    return taken


def test_regions_change_at_most_once_a_minute():
    taken = survey_for(200.0, told(), lambda: (RTTS, MEMBERS), lambda regions: True)
    assert [round(at) for at, _ in taken] == [LOOK_SECONDS + CHANGE_SECONDS * index for index in range(4)]
    assert taken[0][1] == {HOST: 0, A: 0, B: 0, C: 1, D: 1}


def test_while_nothing_changes_the_host_looks_again_soon():
    taken = survey_for(LOOK_SECONDS * 5.5, told(), lambda: (RTTS, MEMBERS), lambda regions: False)
    assert [round(at) for at, _ in taken] == [LOOK_SECONDS * index for index in range(1, 6)]


def test_a_member_that_the_operator_has_pinned_stays_there():
    survey = Survey(HOST, read_pins([f"{C} = 0", f"{D}=5"]))
    survey.prepare(RTTS, MEMBERS)
    regions = survey.assign(MEMBERS)
    assert (regions[C], regions[D]) == (0, 5)


@pytest.mark.parametrize("line", ["", "peer", "=1", "peer=8", "peer=-1", "peer=one"])
def test_a_pin_that_is_none_is_an_error_with_an_example(line):
    with pytest.raises(UsageError) as caught:
        read_pins([line])
    assert "PEER=NUMBER" in caught.value.hint


def test_only_members_are_heard(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            survey = Survey(HOST, {})
            host.answers.take_distances = partial(survey.report, now=0.0)
            stranger = await host.answers.answer(A, said(b=5))
            assert isinstance(stranger, Refusal)
            assert stranger.reason is Reason.NOT_A_MEMBER
            host.members.join(A, join_of(NODES[0]), now=0.0)
            assert isinstance(await host.answers.answer(A, said(b=5)), Noted)
            assert (await host.answers.answer(A, said(b=5))).reason is Reason.TOO_OFTEN

    trio.run(main)


def test_the_network_that_a_connection_comes_from_counts_at_the_door(tmp_path, monkeypatch):
    monkeypatch.setattr("aurora_p2p.host.membership.MAX_OF_NETWORK", 1)

    async def main():
        async with open_host(tmp_path) as host:
            host.answers.ip_of = lambda peer: "198.18.7.1"
            joins = [join_of(node, bulk=()) for node in NODES[:2]]
            assert not isinstance(await host.answers.answer(A, joins[0]), Refusal)
            assert (await host.answers.answer(B, joins[1])).reason is Reason.NETWORK_FULL

    trio.run(main)
