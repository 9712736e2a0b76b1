"""Prometheus metrics of one program: its status snapshot as text, over HTTP, on loopback only.

    Metric                     one documented figure: a name, a meaning, and how it is read from a status
    expose(metrics, status)    the exposition text of a snapshot
    serve_metrics(...)         GET /metrics on a loopback address, until cancelled; nothing when the address is empty

    CONNECTED --request within REQUEST_SECONDS and MAX_REQUEST bytes--> ANSWERED --> closed

Invariants: a snapshot is taken per request, nothing is kept between two; no thread, no global registry. It listens on
a loopback address or not at all, and answers only a request whose Host is one: a web page that points a name of its own
at 127.0.0.1 learns nothing. Any process of this machine may read it; what it shows is counts, never a prompt, a token,
a key or an address. Every label's values are a fixed set or bounded by the status.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import trio

from aurora_p2p.errors import PortInUseError, UsageError
from aurora_p2p.local.output import Output

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

Status = Mapping[str, Any]
Reading = float | Mapping[str, float] | None
Snapshot = Callable[[], Awaitable[Status]]

SETTING = "metrics_listen"
MAX_REQUEST = 8 * 1024
"""Bytes of a request's head; Prometheus sends below 500."""
REQUEST_SECONDS = 5.0
"""From accepting a connection to the last byte of the answer."""
MAX_CONNECTIONS = 8
"""At once; one more is closed unanswered. A scraper has one."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. name: complete, with its base unit, and `_total` where `kind` is a counter.

    read: a number, one number per value of `label`, or None while there is nothing to say.
    """

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    read: Callable[[Status], Reading]
    label: str = ""


def at(*path: str) -> Callable[[Status], Reading]:
    """Reads one place of a status; what is not a number there is left out."""

    def read(status: Status) -> Reading:
        value: Any = status
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, int | float | Mapping) else None

    return read


PROCESS_METRICS = (
    Metric(
        "aurora_process_resident_bytes",
        "gauge",
        "Memory of the daemon, its children not counted.",
        at("process", "rss"),
    ),
    Metric("aurora_process_open_fds", "gauge", "Open file descriptors of the daemon.", at("process", "fds")),
    Metric("aurora_process_tasks", "gauge", "Living tasks of the daemon.", at("process", "tasks")),
    Metric(
        "aurora_loop_lag_seconds", "gauge", "How late the event loop woke a task last.", at("loop_lag", "last_seconds")
    ),
    Metric(
        "aurora_loop_lag_max_seconds",
        "gauge",
        "The longest such delay of the last minute; libp2p gives up at 10.",
        at("loop_lag", "max_seconds"),
    ),
)
"""Of every program."""
DISK_METRICS = (
    Metric("aurora_disk_used_bytes", "gauge", "Quota taken by artifacts.", at("disk", "used")),
    Metric("aurora_disk_quota_bytes", "gauge", "Most that artifacts may take (quota_gib).", at("disk", "quota")),
    Metric("aurora_disk_free_bytes", "gauge", "Free on the disk that holds them.", at("disk", "free")),
)
"""Of the programs that keep artifacts."""


class _Collector:
    """What a registry asks: one snapshot as metric families."""

    def __init__(self, metrics: Sequence[Metric], status: Status) -> None:
        self._metrics, self._status = metrics, status

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric in self._metrics:
            reading = metric.read(self._status)
            if reading is None:
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.meaning, labels=[metric.label] if metric.label else [])
            values = reading if isinstance(reading, Mapping) else {"": reading}
            for value, number in sorted(values.items()):
                if math.isfinite(number):
                    family.add_metric([str(value)] if metric.label else [], float(number))
            yield family


def expose(metrics: Sequence[Metric], status: Status) -> bytes:
    """The Prometheus text format of one snapshot."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics, status))
    return generate_latest(registry)


def loopback_address(listen: str) -> tuple[str, int]:
    """(IP, port) of "127.0.0.1:9464" or "[::1]:0". Raises UsageError naming the setting."""
    host, _, port = listen.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port) if port.isascii() and port.isdecimal() else -1
    except ValueError:
        number = -1
    if not 0 <= number < 65536:
        raise UsageError(f"{SETTING}: {listen!r} is not IP:port", hint="write it like 127.0.0.1:9464")
    if not ip.is_loopback:
        raise UsageError(
            f"{SETTING}: {listen!r} is not a loopback address: metrics are shown to this machine only",
            hint=f"write 127.0.0.1:{number}, and let a proxy that asks for a password show it to others",
        )
    return str(ip), number


async def serve_metrics(
    listen: str,
    metrics: Sequence[Metric],
    snapshot: Snapshot,
    output: Output,
    *,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, and say where (event "metrics"); return at once when `listen` is empty.

    Raises UsageError, PortInUseError.
    """
    if not listen:
        task_status.started()
        return
    host, port = loopback_address(listen)
    try:
        (listener,) = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise PortInUseError(
            f"{SETTING}: cannot listen on {listen}: {error.strerror}", hint="stop the other program, or choose port 0"
        ) from error
    port = listener.socket.getsockname()[1]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
    output.event("metrics", f"metrics {url}", url=url)
    task_status.started(url)
    door = _Door(metrics, snapshot)
    await trio.serve_listeners(door.serve_one, [listener])


class _Door:
    """Answers connections, each with one response."""

    def __init__(self, metrics: Sequence[Metric], snapshot: Snapshot) -> None:
        self._metrics, self._snapshot = metrics, snapshot
        self._open = 0

    async def serve_one(self, stream: trio.SocketStream) -> None:
        """One connection, until its answer is sent, it breaks, or its time is over."""
        self._open += 1
        try:
            async with stream:
                if self._open <= MAX_CONNECTIONS:
                    with trio.move_on_after(REQUEST_SECONDS):
                        await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the asker has gone: nobody is left to tell
        finally:
            self._open -= 1

    async def _converse(self, stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = await stream.receive_some(MAX_REQUEST + 1 - len(head))
            head += more
            if not more or len(head) > MAX_REQUEST:
                await stream.send_all(_response(400, b"a request's head ends within 8 KiB\n"))
                return
        status = judge(head.partition(b"\r\n\r\n")[0])
        if status != 200:
            await stream.send_all(_response(status, REASONS[status].lower().encode() + b"\n"))
            return
        await stream.send_all(_response(200, expose(self._metrics, await self._snapshot()), CONTENT_TYPE))


def judge(head: bytes) -> int:
    """The HTTP status that the head of a request (without the empty line) earns."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        return 400
    headers = [line.partition(":") for line in lines[1:]]
    if any(not colon or name != name.strip() or not name for name, colon, _ in headers):
        return 400
    hosts = [value.strip() for name, _, value in headers if name.lower() == "host"]
    if len(hosts) != 1:
        return 400
    if not is_loopback_host(hosts[0]):
        return 403
    if words[1].partition("?")[0] != "/metrics":
        return 404
    return 200 if words[0] == "GET" else 405


def is_loopback_host(host: str) -> bool:
    """Whether a Host header names this machine itself: "localhost", 127.0.0.0/8 or [::1], with any port or none."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    if not (port.isascii() and port.isdecimal()):
        return False
    if name.lower() == "localhost":
        return True
    bracketed = name.startswith("[") and name.endswith("]")
    try:
        ip = ipaddress.ip_address(name[1:-1] if bracketed else name)
    except ValueError:
        return False
    return ip.is_loopback and (ip.version == 6) == bracketed


def _response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(["Allow: GET"] if status == 405 else []),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body
