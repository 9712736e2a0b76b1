"""A host's screen: what it shows of each state, at any size, whatever peers call themselves."""

import copy

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from aurora_p2p.host.screen import plain_line
from aurora_p2p.host.status import render_status
from aurora_p2p.host.why import why, why_step
from aurora_p2p.types import Step
from aurora_p2p.wire.control import Progress
from aurora_p2p.wire.trainer import StepDone
from tests.host.screens import GALLERY, STATES, behind, generating, node
from tests.host.world import NODES, begin, join_of, open_host
from tests.lease.world import prompts_of

drawn = GALLERY.drawn


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_state_looks_as_it_was_agreed(state):
    """After a change that is meant: python -m tests.host.screens --write, and look at the difference."""
    GALLERY.check_looks(state)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("width", [40, 57, 80, 109, 110, 133, 200])
def test_a_screen_is_exactly_as_large_as_the_terminal(state, width):
    GALLERY.check_size(state, width)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_colour_adds_nothing_but_colour(state):
    GALLERY.check_colour(state)


def test_a_plain_line_does_not_change_with_time_alone():
    older = generating() | {"uptime_seconds": 999.0, "head_age_seconds": 99.0}
    older["trainer"] |= {"waiting_seconds": 50.0}
    assert plain_line(older) == plain_line(generating())
    assert plain_line(behind()) != plain_line(generating())


def shape(value):
    """The keys of a status, all the way down; lists by their first element."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value and isinstance(value[0], dict) else []
    return None


def test_the_states_have_the_shape_of_a_real_hosts_status(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            peer = NODES[0].peer
            await host.publish(0)
            await host.pool_door.handle(prompts_of(0, 3, 2))
            host.members.join(peer, join_of(NODES[0]), now=0.0)
            host.answers.progress.report(peer, Progress(0, 0, 0, 0, 0, "idle"), now=0.0)
            host.door.steps.done(StepDone(Step(0), 0.5, 0.0, 0.0, 0.0), now=0.0)
            host.driver.held[host.desk.newest.artifact] = {peer: 1}
            idle = host.status(now=1.0)
            await host.desk.begin(begin(1, host.desk.newest), 256)
            return idle, host.status(now=2.0)

    for status in trio.run(main):
        real, states = shape(status), shape(generating())
        for name in ("pipeline", "trainer"):
            real[name].pop("extract", None)
            states[name].pop("extract", None)
        assert {key: states[key] for key in ("nodes", "pipeline", "trainer", "history")} == {
            key: real[key] for key in ("nodes", "pipeline", "trainer", "history")
        }
        assert set(real["work"]) == set(states["work"])
        assert real["work"]["steps"] == states["work"]["steps"]
        full = generating() | status
        for width, height in ((40, 20), (120, 40), (200, 60)):
            assert len(drawn(full, width, height)) == height
        assert why(full)
        assert plain_line(full)
        assert render_status(full)


# ---- any status of the right shape

WORD = st.text(max_size=30) | st.sampled_from(["", "\x1b[2J\x07", "漢" * 40, "[red]", "12D3KooW" + "a" * 44])
NUMBER = st.integers(-1, 2**62)
COUNT = st.integers(0, 2**62)
SECONDS = st.floats(0, 1e9)
COUNTS = st.dictionaries(WORD, COUNT, max_size=20)
PROGRESS = st.fixed_dictionaries(
    {"fetching": NUMBER, "have": COUNT, "total": COUNT, "staged": NUMBER, "committed": NUMBER, "state": WORD}
)
NODES_SHOWN = st.lists(
    st.builds(
        node,
        WORD,
        st.integers(0, 7),
        address=WORD,
        seen_seconds=SECONDS,
        linked=st.booleans(),
        active=st.booleans(),
        has_percent=st.none() | st.integers(0, 100),
        version=NUMBER,
        tokens_per_second=st.none() | SECONDS,
        leased=COUNT,
        admitted=COUNT,
        withheld=COUNT,
        refused=COUNTS,
        progress=st.none() | PROGRESS,
    ),
    max_size=30,
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {"step": COUNT, "total": COUNT, "open": COUNT, "leased": COUNT, "admitted": COUNT, "why": WORD}
    ),
    max_size=12,
)
FINISHED = st.lists(
    st.fixed_dictionaries(
        {"step": COUNT, "reward": st.none() | st.floats(-1e12, 1e12), "samples": COUNT}
        | dict.fromkeys(
            ["age_seconds", "seconds", "waited_seconds", "trained_seconds", "published_seconds", "tokens_per_second"],
            SECONDS,
        )
        | {"wait_share": st.floats(0, 1)}
    ),
    max_size=200,
)
KEYED = {
    "swarm": WORD,
    "version": NUMBER,
    "seq": COUNT,
    "nodes": NODES_SHOWN,
    "history": FINISHED,
    "log": st.lists(WORD, max_size=60),
    "ticket": WORD,
    "head_age_seconds": SECONDS | st.none(),
    "uptime_seconds": SECONDS,
    "paused": st.booleans(),
    "draining": st.booleans(),
    "publishing": st.booleans(),
    "equivocation": st.booleans(),
}
INNER = {
    ("work", "steps"): STEPS,
    ("work", "refused"): COUNTS,
    ("ledger", "waits"): WORD,
    ("exchange", "banned"): st.dictionaries(WORD, SECONDS, max_size=20),
    ("exchange", "ban_reasons"): st.dictionaries(WORD, WORD, max_size=20),
    ("disk", "free"): COUNT,
    ("pipeline", "extract"): st.none()
    | st.fixed_dictionaries({"version": COUNT, "bytes": COUNT, "bound": COUNT, "seconds": SECONDS}),
    ("pipeline", "nodes"): COUNT,
    ("pipeline", "staged"): COUNT,
    ("trainer", "connections"): COUNT,
    ("trainer", "waits_for"): st.none() | COUNT,
    ("trainer", "wait_share"): st.none() | st.floats(0, 1),
}


@st.composite
def statuses(draw):
    status = copy.deepcopy(draw(st.sampled_from(STATES))())
    for key in draw(st.sets(st.sampled_from(sorted(KEYED)))):
        status[key] = draw(KEYED[key])
    status["nodes"] = sorted(status["nodes"], key=lambda row: row["region"])
    for outer, inner in draw(st.sets(st.sampled_from(sorted(INNER)))):
        status[outer][inner] = draw(INNER[outer, inner])
    return status


@settings(max_examples=60, deadline=None)
@given(statuses(), st.integers(40, 200), st.integers(10, 100))
def test_any_status_fits_any_terminal_and_holds_no_control_character(status, width, height):
    lines = drawn(status, width, height)
    assert len(lines) == height
    assert all(cell_len(text) <= width for text in lines)
    assert all(text.isprintable() for text in [*lines, *why(status), why_step(status, 41)])
