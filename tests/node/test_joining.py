"""The first join: what it goes on after, what it ends with, and what its owner hears."""

import pytest
import trio
import trio.testing

from aurora_node.joining import LONGEST_PAUSE_SECONDS, join_patiently
from aurora_p2p.errors import RefusedError, StaleError, UnreachableError, UsageError
from aurora_p2p.local.output import Output
from tests.host.world import NODES, record_of

AWAY = UnreachableError("no host answered (a: connection refused)", hint="check that it is up")
FULL = RefusedError("the host refuses: roster full", hint="try again in a minute", retry_seconds=40.0)


class Link:
    """`outcomes`: what each attempt raises; None: it joins."""

    def __init__(self, *outcomes):
        self.outcomes, self.at, self.records = list(outcomes), [], []

    async def join(self, record):
        await trio.lowlevel.checkpoint()
        self.at.append(trio.current_time())
        self.records.append(record)
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome


def join(link, record=None):
    """The times between attempts, and what was said."""
    output = Output(as_json=False)
    mine = record_of(NODES[0])
    trio.run(join_patiently, link, record or (lambda: mine), output, clock=trio.testing.MockClock(autojump_threshold=0))
    waits = [round(after - before, 3) for before, after in zip(link.at, link.at[1:], strict=False)]
    return waits, output.tail(100)


def test_a_node_that_starts_before_its_host_tries_until_it_answers_with_growing_pauses():
    waits, _ = join(Link(*[AWAY] * 7, None))
    assert waits == [1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_the_owner_is_told_once_for_each_reason_what_fails_and_what_to_do():
    other = UnreachableError("no host answered (a: no route to host)", hint="check that it is up")
    _, said = join(Link(AWAY, AWAY, AWAY, other, None))
    assert [text.partition(" (")[2].partition(")")[0] for text in said] == [
        "a: connection refused",
        "a: no route to host",
    ]
    assert all("check that it is up; trying again" in text for text in said)


def test_a_full_roster_is_asked_again_when_the_host_named_a_time():
    assert join(Link(FULL, None))[0] == [40.0]


def test_a_host_cannot_send_a_node_away_for_days():
    for_days = RefusedError("the host refuses: roster full", retry_seconds=1e6)
    assert join(Link(for_days, None))[0] == [60.0]


@pytest.mark.parametrize(
    "final",
    [
        RefusedError("the host refuses: wrong swarm"),
        StaleError("generation 1 was revoked by 2"),
        UsageError("there is nowhere to look for this swarm"),
    ],
)
def test_what_no_second_attempt_can_mend_ends_it_at_once(final):
    link = Link(final)
    with pytest.raises(type(final), match=str(final)):
        join(link)
    assert len(link.at) == 1


def test_each_attempt_takes_the_addresses_that_the_machine_has_then():
    found = [record_of(NODES[0], control=(f"/ip4/127.0.0.{number}/tcp/1",)) for number in (1, 2)]
    link = Link(AWAY, None)
    join(link, lambda: found[len(link.records)])
    assert link.records == found
