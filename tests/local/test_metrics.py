"""Metrics over HTTP on loopback: what is served, to whom, and what a hostile asker gets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from aurora_p2p.errors import PortInUseError, UsageError
from aurora_p2p.local import metrics as door
from aurora_p2p.local.metrics import (
    MAX_CONNECTIONS,
    MAX_REQUEST,
    Metric,
    at,
    expose,
    is_loopback_host,
    judge,
    loopback_address,
    serve_metrics,
)
from aurora_p2p.local.output import Output

METRICS = (
    Metric("aurora_test_version", "gauge", "A number.", at("version")),
    Metric("aurora_test_bytes_total", "counter", "A counter.", at("exchange", "bytes")),
    Metric("aurora_test_refused_total", "counter", "By reason.", at("refused"), "reason"),
)
STATUS = {"version": 7, "exchange": {"bytes": 1 << 40}, "refused": {"too late": 2, 'a "quoted"\nname': 1}}
GOOD = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def status() -> Mapping[str, Any]:
    return STATUS


@contextlib.asynccontextmanager
async def serving(listen: str = "127.0.0.1:0") -> AsyncIterator[int]:
    """A running endpoint; its port."""
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve_metrics, listen, METRICS, status, Output(as_json=True))
        yield int(url.rpartition(":")[2].partition("/")[0])
        nursery.cancel_scope.cancel()


async def ask(port: int, request: bytes, host: str = "127.0.0.1") -> bytes:
    """Everything the endpoint answers until it closes."""
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(request)
        answer = b""
        with contextlib.suppress(trio.BrokenResourceError):
            async for piece in stream:
                answer += piece
        return answer


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_snapshot_becomes_text_that_prometheus_reads_back_number_for_number() -> None:
    assert samples(expose(METRICS, STATUS)) == {
        ("aurora_test_version", ()): 7.0,
        ("aurora_test_bytes_total", ()): float(1 << 40),
        ("aurora_test_refused_total", ("too late",)): 2.0,
        ("aurora_test_refused_total", ('a "quoted"\nname',)): 1.0,
    }


def test_what_a_status_cannot_say_yet_is_left_out() -> None:
    assert samples(expose(METRICS, {"version": None, "refused": {}})) == {}
    assert samples(expose(METRICS, {"version": float("nan"), "exchange": {"bytes": 1}})) == {
        ("aurora_test_bytes_total", ()): 1.0
    }


async def answer_to(request: bytes) -> bytes:
    async with serving() as port:
        return await ask(port, request)


def test_a_scraper_gets_the_metrics_and_the_connection_is_closed() -> None:
    head, _, body = trio.run(answer_to, GOOD).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in lines
    assert f"Content-Length: {len(body)}" in lines
    assert "Connection: close" in lines
    assert samples(body)["aurora_test_version", ()] == 7.0


def test_ipv6_loopback_serves_as_well() -> None:
    async def run() -> bytes:
        async with serving("[::1]:0") as port:
            return await ask(port, b"GET /metrics HTTP/1.1\r\nHost: [::1]:9\r\n\r\n", "::1")

    assert trio.run(run).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("GET /metrics HTTP/1.1\r\nHost: localhost:9464", 200),
        ("GET /metrics?x=1 HTTP/1.0\r\nhost:127.0.0.1", 200),
        ("POST /metrics HTTP/1.1\r\nHost: localhost", 405),
        ("GET / HTTP/1.1\r\nHost: localhost", 404),
        ("GET /metrics/ HTTP/1.1\r\nHost: localhost", 404),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example", 403),
        ("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1.evil.example", 403),
        ("GET /metrics HTTP/1.1\r\nHost: 10.0.0.1", 403),
        ("GET /metrics HTTP/1.1", 400),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("GET /metrics HTTP/2\r\nHost: localhost", 400),
        ("GET /metrics\r\nHost: localhost", 400),
        ("GET /metrics HTTP/1.1\r\nHost : localhost", 400),
        ("GET /metrics HTTP/1.1\r\nno header", 400),
        ("", 400),
    ],
)
def test_only_a_get_of_metrics_for_this_machine_is_answered(head: str, expected: int) -> None:
    assert judge(head.encode()) == expected


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:443"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "example.com", "localhost.example.com", "0.0.0.0", "192.0.2.1:80", "::1", "[127.0.0.1]", "localhost:x", ":1"],
)
def test_names_of_others(host: str) -> None:
    assert not is_loopback_host(host)


def test_a_refusal_is_a_complete_response() -> None:
    head, _, body = trio.run(answer_to, b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 405 Method Not Allowed"
    assert b"Allow: GET" in head
    assert body == b"method not allowed\n"


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100 + b"\r\n\r\n", b"A" * (MAX_REQUEST + 1), b"GET /metrics HTTP/1.1\r\n"]
)
def test_garbage_and_endless_heads_are_refused(garbage: bytes) -> None:
    async def run() -> bytes:
        async with serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(garbage)
            await stream.send_eof()
            return bytes(await stream.receive_some())

    assert trio.run(run).startswith(b"HTTP/1.1 400 Bad Request")


def test_an_asker_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUEST_SECONDS", 0.05)
    assert trio.run(answer_to, b"GET /metrics") == b""


def test_one_connection_too_many_is_closed_and_the_next_one_is_answered() -> None:
    async def run() -> None:
        async with serving() as port:
            async with contextlib.AsyncExitStack() as crowd:
                for _ in range(MAX_CONNECTIONS):
                    await crowd.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                assert await ask(port, GOOD) == b""
            with trio.fail_after(5):
                while not (await ask(port, GOOD)).startswith(b"HTTP/1.1 200"):
                    await trio.lowlevel.checkpoint()

    trio.run(run)


def test_an_empty_setting_serves_nothing() -> None:
    async def run() -> object:
        async with trio.open_nursery() as nursery:
            return await nursery.start(serve_metrics, "", METRICS, status, Output(as_json=True))

    assert trio.run(run) is None


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "192.0.2.7:1", "[::]:9464", "[2001:db8::1]:1"])
def test_an_address_that_others_reach_is_refused_by_the_settings_name(listen: str) -> None:
    with pytest.raises(UsageError, match="^metrics_listen: .* is not a loopback address") as refused:
        loopback_address(listen)
    assert "127.0.0.1:" in refused.value.hint


@pytest.mark.parametrize("listen", ["9464", "localhost:9464", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1", ":1"])
def test_an_address_that_is_none_is_refused_by_the_settings_name(listen: str) -> None:
    with pytest.raises(UsageError, match="^metrics_listen: .* is not IP:port"):
        loopback_address(listen)


def test_a_port_in_use_is_named() -> None:
    async def run() -> None:
        async with serving() as port, serving(f"127.0.0.1:{port}"):
            raise AssertionError("two listen on one port")

    with pytest.RaisesGroup(PortInUseError, allow_unwrapped=True, flatten_subgroups=True):
        trio.run(run)
