"""What nodes report: the newest of each member is kept, clean and consistent; nobody can report too often."""

import trio
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.host.progress import REPORT_BURST, REPORTS_PER_SECOND, STATE_LETTERS, ProgressBoard
from aurora_p2p.types import Version
from aurora_p2p.wire.control import Noted, Progress, Reason, Refusal
from tests.host.world import NODES, join_of, open_host

A, B = NODES[0].peer, NODES[1].peer


def progress(**changes):
    values = {"fetching": 4, "have": 3, "total": 10, "staged": 3, "committed": 3, "state": "generating"}
    return Progress(**{**values, **changes})


def test_the_newest_report_of_a_node_is_kept():
    board = ProgressBoard()
    assert board.of(A) is None
    assert board.report(A, progress(), now=5.0) is None
    assert board.report(A, progress(have=7), now=6.0) is None
    assert (board.of(A).have, board.of(A).total, board.of(A).at) == (7, 10, 6.0)
    assert board.of(B) is None


def test_a_report_is_shown_without_control_characters_and_never_with_more_than_all():
    board = ProgressBoard()
    board.report(A, progress(have=99, state="\x1b[2Jdone\n" + "x" * 500), now=0.0)
    report = board.of(A)
    assert report.have == 10
    assert report.state.startswith("?[2Jdone?")
    assert len(report.state) == STATE_LETTERS
    board.report(A, progress(have=99, total=0), now=0.0)
    assert (board.of(A).have, board.of(A).total) == (99, 0)


def test_too_many_reports_are_refused_by_name_and_the_last_one_taken_stays():
    board = ProgressBoard()
    answers = [board.report(A, progress(have=index), now=0.0) for index in range(REPORT_BURST + 2)]
    assert answers[:REPORT_BURST] == [None] * REPORT_BURST
    assert [(answer.reason, answer.retry_seconds) for answer in answers[REPORT_BURST:]] == [(Reason.TOO_OFTEN, 0.5)] * 2
    assert board.of(A).have == REPORT_BURST - 1
    assert board.report(B, progress(), now=0.0) is None
    assert board.report(A, progress(), now=1 / REPORTS_PER_SECOND) is None


@given(st.lists(st.floats(0.0, 3.0), max_size=200))
def test_in_the_long_run_no_more_is_taken_than_the_rate_allows(pauses):
    board, now, taken = ProgressBoard(), 100.0, 0
    for pause in pauses:
        now += pause
        taken += board.report(A, progress(), now=now) is None
    assert taken <= REPORT_BURST + (now - 100.0) * REPORTS_PER_SECOND + 1e-6


def test_who_leaves_is_forgotten():
    board = ProgressBoard()
    for peer in (A, B):
        board.report(peer, progress(), now=0.0)
    board.retain({B})
    assert board.of(A) is None
    assert board.of(B) is not None
    assert set(board._allowances) == {B}


def test_a_host_notes_the_reports_of_members_only_and_shows_them(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            stranger = await host.answers.answer(A, progress())
            assert (type(stranger), stranger.reason) == (Refusal, Reason.NOT_A_MEMBER)
            assert host.answers.progress.of(A) is None
            await host.answers.answer(A, join_of(NODES[0]))
            assert await host.answers.answer(A, progress(committed=2)) == Noted()
            answers = [await host.answers.answer(A, progress()) for _ in range(2 * REPORT_BURST)]
            assert answers[-1].reason is Reason.TOO_OFTEN
            await host.publish(3)
            [node] = host.status()["nodes"]
            assert (node["version"], node["progress"]["fetching"], node["progress"]["have"]) == (Version(3), 4, 3)
            assert node["progress"]["age_seconds"] < 60

    trio.run(main)


def test_a_report_keeps_a_silent_member_alive(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            host.members.join(A, join_of(NODES[0]), now=-1000.0)
            await host.answers.answer(A, progress())
            assert host.members.view()[A].seen > 0

    trio.run(main)
