"""Rates out of counters, and what the traffic tells of links: time is an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.net.rates import SMOOTHING_SECONDS, Rates
from aurora_p2p.net.traffic import Traffic
from aurora_p2p.swarm import events as ev
from aurora_p2p.types import PeerId
from aurora_p2p.wire.exchange import SegmentData

A, B = PeerId("A"), PeerId("B")


def test_a_steady_flow_is_its_own_rate_after_a_few_looks():
    rates = Rates()
    for second in range(20):
        rates.observe({"a": 5_000 * second}, float(second))
    assert rates.of("a") == pytest.approx(5_000, rel=0.01)
    assert rates.of("unknown") == 0.0


def test_a_flow_that_ends_fades_to_zero():
    rates = Rates()
    rates.observe({"a": 0}, 0.0)
    rates.observe({"a": 10_000}, 1.0)
    assert 0 < rates.of("a") < 10_000
    for second in range(2, 60):
        rates.observe({"a": 10_000}, float(second))
    assert rates.of("a") == 0.0


def test_a_second_look_at_one_moment_changes_nothing():
    rates = Rates()
    rates.observe({"a": 0}, 1.0)
    rates.observe({"a": 900}, 2.0)
    before = rates.of("a")
    rates.observe({"a": 5_000}, 2.0)
    assert rates.of("a") == before


def test_a_key_that_is_gone_is_forgotten():
    rates = Rates()
    rates.observe({"a": 0, "b": 0}, 0.0)
    rates.observe({"a": 100, "b": 100}, SMOOTHING_SECONDS)
    rates.observe({"b": 200}, 2 * SMOOTHING_SECONDS)
    assert (rates.of("a"), rates.total()) == (0.0, rates.of("b"))


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.01, 100)), min_size=1, max_size=30))
def test_a_rate_is_never_negative_nor_above_the_fastest_interval(steps):
    rates, total, now, fastest = Rates(), 0, 0.0, 0.0
    rates.observe({"a": 0}, now)
    for count, seconds in steps:
        total, now = total + count, now + seconds
        fastest = max(fastest, count / seconds)
        rates.observe({"a": total}, now)
        assert 0 <= rates.of("a") <= fastest * 1.0001


def segment(peer, length):
    return ev.SegmentIn(peer, SegmentData(bytes(32), 0, "", b""), f"token-{peer}", length, bytes(32))


def told(traffic):
    return {peer["peer"]: peer for peer in traffic.snapshot(lambda artifact: 0)["peers"]}


def test_the_traffic_tells_the_address_and_the_rates_of_each_link():
    traffic = Traffic()
    traffic.opened(A, "127.0.0.1:4101", dialled=True)
    traffic.opened(B, "[::1]:4102", dialled=False)
    traffic.observe(0.0)
    traffic.happened(segment(A, 8_000))
    traffic.observe(2.0)
    peers = told(traffic)
    assert (peers[A]["address"], peers[A]["dialled"], peers[A]["linked"]) == ("127.0.0.1:4101", True, True)
    assert 0 < peers[A]["down_rate"] <= 4_000
    assert (peers[A]["up_rate"], peers[B]["down_rate"]) == (0.0, 0.0)
    assert traffic.snapshot(lambda artifact: 0)["down_rate"] == peers[A]["down_rate"]


def test_a_closed_link_keeps_its_counters_and_loses_its_address():
    traffic = Traffic()
    traffic.opened(A, "127.0.0.1:4101", dialled=True)
    traffic.happened(segment(A, 100))
    traffic.closed(A)
    peer = told(traffic)[A]
    assert (peer["linked"], peer["address"], peer["received_bytes"]) == (False, "", 100)


def test_reasons_are_kept_for_those_who_are_banned_now():
    traffic = Traffic()
    traffic.banned(A, "a wrong page", {A})
    traffic.banned(B, "segment 5 fails its hash", {B})
    assert traffic.snapshot(lambda artifact: 0)["ban_reasons"] == {B: "segment 5 fails its hash"}
