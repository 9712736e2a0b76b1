"""A node's screen: what it shows of each state, at any size, whatever peers call themselves."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from aurora_node.screen import plain_line
from aurora_node.status import render_status
from aurora_node.why import why
from tests.node.parts import snapshot_of
from tests.node.screens import GALLERY, STATES, generating, starting

drawn = GALLERY.drawn


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_state_looks_as_it_was_agreed(state):
    """After a change that is meant: python -m tests.node.screens --write, and look at the difference."""
    GALLERY.check_looks(state)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("width", [40, 57, 80, 109, 110, 133, 200])
def test_a_screen_is_exactly_as_large_as_the_terminal(state, width):
    GALLERY.check_size(state, width)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_colour_adds_nothing_but_colour(state):
    GALLERY.check_colour(state)


# ---- any status of the right shape

WORD = st.text(max_size=30) | st.sampled_from(["", "\x1b[2J\x07", "漢" * 40, "[red]", "12D3KooW" + "a" * 44])
NUMBER = st.integers(-1, 2**62)
SECONDS = st.floats(0, 1e9)
KEYED = {
    "version": NUMBER,
    "newest": NUMBER,
    "version_age_seconds": SECONDS | st.none(),
    "state": WORD | st.sampled_from(["generating", "idle: no work", "no lease: "]),
    "problem": WORD,
    "host": WORD | st.none(),
    "swarm": WORD,
    "tried": st.lists(WORD, max_size=6),
    "tokens_per_second": SECONDS | st.none(),
    "recent_tokens_per_second": st.lists(SECONDS, max_size=180),
    "refused": st.dictionaries(WORD, NUMBER, max_size=30),
    "log": st.lists(WORD, max_size=60),
    "fresh": st.booleans(),
    "member": st.booleans(),
    "equivocation": st.booleans(),
    "pause_p50_ms": SECONDS | st.none(),
    "lease": st.fixed_dictionaries(
        {"step": NUMBER, "done": NUMBER, "size": NUMBER, "seconds_left": SECONDS | st.none()}
    ),
    "head": st.fixed_dictionaries(
        {"age_seconds": SECONDS | st.none(), "version": NUMBER, "seq": NUMBER, "generation": NUMBER}
    ),
    "fetching": st.none()
    | st.fixed_dictionaries(
        {
            "version": NUMBER,
            "kind": WORD,
            "have": st.integers(0, 2**20),
            "segments": st.integers(0, 2**20),
            "segment_bytes": st.integers(1, 2**24),
            "coverage": st.lists(st.integers(0, 100), max_size=192),
            "holders": NUMBER,
        }
    ),
    "presence": st.fixed_dictionaries(
        {"working": st.booleans(), "paused_by": WORD | st.just("owner"), "detail": WORD, "until": WORD}
    ),
}
EXCHANGED = {
    "banned": st.dictionaries(WORD, SECONDS, max_size=30),
    "ban_reasons": st.dictionaries(WORD, WORD, max_size=30),
    "down_rate": SECONDS,
    "up_rate": SECONDS,
    "disk_paused": st.booleans(),
    "peers": st.lists(
        st.fixed_dictionaries(
            {
                "peer": WORD,
                "linked": st.booleans(),
                "dialled": st.booleans(),
                "address": WORD,
                "sent_bytes": NUMBER,
                "received_bytes": NUMBER,
                "up_rate": SECONDS,
                "down_rate": SECONDS,
                "has_percent": st.none() | st.integers(0, 100),
                "region": st.none() | NUMBER,
                "standing": st.none()
                | st.fixed_dictionaries(
                    {"is_host": st.booleans(), "weight": st.floats(0, 1), "strikes": NUMBER, "stalls": NUMBER}
                ),
            }
        ),
        max_size=40,
    ),
}


@st.composite
def statuses(draw):
    status = copy.deepcopy(draw(st.sampled_from(STATES))())
    for key in draw(st.sets(st.sampled_from(sorted(KEYED)))):
        status[key] = draw(KEYED[key])
    for key in draw(st.sets(st.sampled_from(sorted(EXCHANGED)))):
        status["exchange"][key] = draw(EXCHANGED[key])
    return status


@settings(max_examples=60, deadline=None)
@given(statuses(), st.integers(40, 200), st.integers(10, 100))
def test_any_status_fits_any_terminal_and_holds_no_control_character(status, width, height):
    lines = drawn(status, width, height)
    assert len(lines) == height
    assert all(cell_len(text) <= width for text in lines)
    assert all(text.isprintable() for text in [*lines, *why(status)])
    assert why(status)


# ---- the shape of a real status


DAEMON_KEYS = {"fresh", "engine_restarts", "equivocation", "presence", "disk", "log", "draining"}
"""What the daemon adds to `snapshot`."""


def test_the_statuses_above_have_the_shape_of_a_real_one(tmp_path):
    real = snapshot_of(tmp_path)
    made = starting()
    assert {*made} - DAEMON_KEYS == {*real}
    for key in ("head", "lease", "exchange"):
        assert {*made[key]} == {*real[key]}, key


def test_a_status_is_rendered_for_a_person_whatever_peers_call_themselves():
    for state in STATES:
        text = render_status(state())
        assert all(line.isprintable() for line in text.split("\n"))
        assert plain_line(state()).count("\n") == 0


def test_the_status_of_a_working_node_tells_its_lease_its_links_and_its_bans():
    text = render_status(generating() | {"problem": "none really"})
    assert "lease     step 42: 12/32, 8 s left" in text
    assert "link      ...licealic  127.0.0.1:4102  down 1.2 MB/s  up 310 kB/s  has 100 %" in text
    assert text.endswith("problem   none really")
