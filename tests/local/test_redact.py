"""What is taken out of texts and tables before they leave a machine, and what is left readable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.redact import HIDDEN, redact, redact_value
from aurora_p2p.wire.ticket import Ticket

PEER = Identity(bytes(range(32))).peer
TICKET = str(Ticket(PEER, hosts=("/ip4/10.0.0.1/tcp/4100/p2p/" + PEER,)))


def test_a_ticket_is_hidden_wherever_it_stands():
    for text in (TICKET, f"join {TICKET}, please", TICKET.upper(), f"<{TICKET}>"):
        shown = redact(text)
        assert TICKET[8:40].lower() not in shown.lower()
        assert HIDDEN in shown


def test_a_key_file_in_a_text_loses_its_seed(tmp_path):
    Identity(bytes(range(32))).save(tmp_path / "node.key")
    assert bytes(range(32)).hex() not in redact((tmp_path / "node.key").read_text())


@pytest.mark.parametrize("text", ["token=abcdef", '"secret": "abcdef"', "password: abcdef", "SEED = 'abcdef'"])
def test_what_is_assigned_to_the_name_of_a_secret_is_hidden(text):
    assert "abcdef" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        f"joined {PEER}",
        "512 tokens per second",
        "seed=7 steps=12",
        "max_context_tokens = 32768",
        f"digest {'ab' * 32}",
        "the aurora1 protocol",
    ],
)
def test_ids_digests_counts_and_the_seeds_of_generators_stay(text):
    assert redact(text) == text


def test_values_are_hidden_by_the_name_of_their_key_at_any_depth_and_bytes_are_counted():
    table = {"ticket": TICKET, "work": [{"seed": b"1234", "tokens": 5}], "raw": b"12345", "prompt": 3, "prompts": [[1]]}
    assert redact_value(table) == {
        "ticket": HIDDEN,
        "work": [{"seed": HIDDEN, "tokens": 5}],
        "raw": "(5 bytes)",
        "prompt": 3,
        "prompts": HIDDEN,
    }


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=20)
)
def test_a_table_keeps_its_shape(value):
    shown = redact_value(value)
    assert redact_value(shown) == shown
    if isinstance(value, list):
        assert len(shown) == len(value)


@given(st.text())
def test_redacting_twice_changes_nothing_more(text):
    assert redact(redact(text)) == redact(text)
