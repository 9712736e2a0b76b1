from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.errors import UsageError, WireError
from aurora_p2p.net.addresses import check_cidrs, control_ip, join_bulk, may_dial, own_scope, split_bulk


@pytest.mark.parametrize("ip", ["127.0.0.1", "10.1.2.3", "192.168.1.1", "169.254.1.1", "::1", "fe80::1", "0.0.0.0"])
def test_private_addresses_are_not_dialled_on_a_peers_word(ip: str) -> None:
    assert not may_dial(ip, ())


def test_a_local_scope_opens_its_network_only() -> None:
    assert may_dial("127.0.0.1", ("127.0.0.0/8",))
    assert not may_dial("10.0.0.1", ("127.0.0.0/8",))
    assert may_dial("1.1.1.1", ())
    assert not may_dial("224.0.0.1", ())


def test_bulk_addresses_round_trip() -> None:
    for ip in ("127.0.0.1", "::1"):
        assert split_bulk(join_bulk(ip, 4102)) == (ip, 4102)


@given(text=st.text(max_size=60))
def test_any_text_is_an_address_or_a_wire_error(text: str) -> None:
    for parse in (split_bulk, control_ip):
        with contextlib.suppress(WireError):
            parse(text)


@pytest.mark.parametrize("address", ["example.org:80", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:-1", ":80"])
def test_names_and_odd_ports_are_refused(address: str) -> None:
    with pytest.raises(WireError):
        split_bulk(address)


def test_typing_a_loopback_bootstrap_opens_loopback() -> None:
    assert own_scope(["/ip4/127.0.0.1/tcp/4101/p2p/x"]) == ("127.0.0.0/8",)
    assert own_scope(["/ip4/1.1.1.1/tcp/4101/p2p/x"]) == ()


def test_a_wrong_cidr_is_named() -> None:
    with pytest.raises(UsageError, match=r"10\.0\.0"):
        check_cidrs(["10.0.0"])
