"""An emulated long path between two network namespaces, packet by packet, for real TCP stacks. Linux, root.

    namespace 0  --TUN--  wan_shim: rate, queue, delay  --TUN--  namespace 1;  iptables drops at random on arrival

A proxy that forwards TCP would end every connection at itself and hide what distance and loss do to TCP; here whole IP
packets travel, and the two kernels' own congestion control sees the path. Which parts do what:

    delay, rate, queue   wan_shim.py, the process in the middle. The rate is not `tc tbf` on the sender's device: there
                         TCP sees its own queue and slows down before it overflows, which no router can make it do.
    loss                 `iptables -m statistic` on INPUT of the receiving namespace: per packet of the MTU, since a TUN
                         device without offload neither merges nor splits. Both directions, so acknowledgements too.
    congestion control   set on the route, per namespace, whatever the machine's default is.

Every `open_wan` starts with nothing learnt: the kernel keeps no metrics of earlier connections
(`tcp_no_metrics_save`). It leaves nothing behind; names are those of netlab.py, so what a killed process left is
removed by the next laboratory of either kind.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Literal

from aurora_p2p.errors import ChildError, UsageError
from aurora_p2p.testing.netlab import Access, Counts, LabError, LabNode, remove_stale

ADDRESSES = ("198.19.255.1", "198.19.255.2")
"""Of the two ends: inside 198.18.0.0/15, which is set aside for benchmarks (RFC 2544)."""
NETWORK = "198.19.255.0/30"
DEVICE = "wan0"
MTU = 1500
"""That of the internet, for the packet counts, losses and windows of the internet."""
QUEUED_PACKETS = 10_000
"""In a TUN device while the shim sleeps: a whole window, since the queue of the path is the shim's."""
STOP_SECONDS = 5.0
TOOLS = ("ip", "iptables")
SETTINGS = {"ipv4/tcp_no_metrics_save": 1, "ipv6/conf/all/disable_ipv6": 1}
"""Under /proc/sys/net of each namespace, where the kernel has them."""

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""linux/if_tun.h"""
_numbers = itertools.count()

Congestion = Literal["cubic", "bbr", "reno"]


@dataclass(frozen=True, slots=True)
class WanShape:
    """A path: the same in both directions. mbit_per_s counts whole IP packets."""

    mbit_per_s: float
    rtt_seconds: float
    loss_ratio: float = 0.0
    """Of the packets, each direction by itself."""
    queue_bytes: int = 0
    """Before the link; 0: what the path itself holds (rate x RTT)."""
    congestion: Congestion = "cubic"
    slow_start_after_idle: bool = True
    """Whether windows are forgotten when a connection has been idle for a retransmission timeout (the default)."""

    @property
    def bytes_per_s(self) -> float:
        return self.mbit_per_s * 1e6 / 8

    @property
    def payload_bytes_per_s(self) -> float:
        """What is left for payload: 20 bytes of IPv4, 20 of TCP and 12 of its timestamps are headers."""
        return self.bytes_per_s * (MTU - 52) / MTU

    @property
    def product_bytes(self) -> int:
        """Rate x RTT."""
        return int(self.bytes_per_s * self.rtt_seconds)


@dataclass(frozen=True, slots=True)
class PathCounts:
    """Since the start. Pairs: from end 0 to end 1, and back."""

    packets: tuple[int, int]
    """That reached the other end's device; `lost` of them died there."""
    bytes: tuple[int, int]
    queue_dropped: tuple[int, int]
    lost: tuple[int, int]
    unwritten: int
    late_ms: float
    """The most that a packet came later than it should."""
    cpu_seconds: float
    """Of the shim, with what the kernel did in its name."""


class Wan:
    """Made by open_wan. `nodes` and `counts` are those of a netlab.Lab of two nodes, in two regions."""

    def __init__(self, shape: WanShape, nodes: tuple[LabNode, LabNode], shim: _Shim) -> None:
        self.shape, self.nodes, self._shim = shape, nodes, shim

    @property
    def shim_pid(self) -> int:
        """Of the process in the middle."""
        return self._shim.pid

    def counts(self) -> list[Counts]:
        """Bytes that each end put on the path, and that arrived there."""
        up, back = self.path_counts().bytes
        return [Counts(up, back), Counts(back, up)]

    def path_counts(self) -> PathCounts:
        """Raises ChildError when the shim has died."""
        line = self._shim.ask()
        if not line:
            raise ChildError("the process in the middle of the path has died", hint="its messages are on stderr")
        said = json.loads(line)
        return PathCounts(
            packets=tuple(said["packets"]),
            bytes=tuple(said["bytes"]),
            queue_dropped=tuple(said["queue_dropped"]),
            lost=(self._lost_at(1), self._lost_at(0)),
            unwritten=said["unwritten"],
            late_ms=said["late_ms"],
            cpu_seconds=said["cpu_seconds"],
        )

    def _lost_at(self, end: int) -> int:
        if not self.shape.loss_ratio:
            return 0
        rules = _run(self.nodes[end].command(["iptables", "-nvxL", "INPUT"])).splitlines()
        return int(rules[2].split()[0])  # two lines of heads, then the only rule: packets, bytes, target ...


@contextmanager
def open_wan(shape: WanShape) -> Iterator[Wan]:
    """Two namespaces and the path between them. Raises UsageError when this machine cannot make them, or LabError."""
    require_tools()
    remove_stale()
    number = next(_numbers)
    nodes = (_node(number, 0, shape), _node(number, 1, shape))
    with ExitStack() as stack:
        with ExitStack() as held:  # in the end only the shim holds the devices: they end with it
            tuns = []
            for node in nodes:
                _run(["ip", "netns", "add", node.namespace])
                stack.callback(_run, ["ip", "netns", "delete", node.namespace])
                tuns.append(held.enter_context(_tun(node.port)))
                _run(["ip", "link", "set", node.port, "netns", node.namespace, "name", DEVICE])
                _furnish(node, shape)
            shim = _Shim(shape, tuns)
            stack.callback(shim.stop)
        yield Wan(shape, nodes, shim)


def missing() -> str:
    """Why there can be no emulated path on this machine; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} not installed"
    return "" if Path("/dev/net/tun").exists() else "/dev/net/tun is missing"


def require_tools() -> None:
    """Raises UsageError that says what is missing."""
    why = missing()
    if why:
        hint = "scripts/setup installs iproute2 and iptables" if os.geteuid() == 0 else "run it with sudo"
        raise UsageError(f"no emulated path here: {why}", hint=hint)


def _node(number: int, end: int, shape: WanShape) -> LabNode:
    pid, rate = os.getpid(), shape.mbit_per_s
    device = f"aw{pid % 10**7}n{number % 10**3}{'ab'[end]}"  # until it is moved; 15 characters at most
    return LabNode(f"aurora-{pid}-wan{number}{'ab'[end]}", device, ADDRESSES[end], Access(rate, rate, region=end))


@contextmanager
def _tun(device: str) -> Iterator[int]:
    """A TUN device of plain IP packets, which lives as long as a descriptor of it."""
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR)
    except OSError as error:
        raise UsageError(
            f"/dev/net/tun cannot be opened: {error.strerror}", hint="allow it to this container"
        ) from error
    try:
        ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        yield tun
    finally:
        os.close(tun)


def _furnish(node: LabNode, shape: WanShape) -> None:
    """Addresses, the route with its congestion control, settings and loss of one end."""
    settings = {**SETTINGS, "ipv4/tcp_slow_start_after_idle": int(shape.slow_start_after_idle)}
    paths = {f"/proc/sys/net/{name}": value for name, value in settings.items()}
    script = " && ".join(f"{{ [ ! -e {path} ] || echo {value} > {path}; }}" for path, value in paths.items())
    _run(node.command(["sh", "-c", script]))
    inside = ["ip", "-n", node.namespace]
    _run([*inside, "link", "set", "lo", "up"])
    _run([*inside, "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", str(QUEUED_PACKETS), "up"])
    _run([*inside, "address", "add", f"{node.address}/30", "dev", DEVICE])
    _run([*inside, "route", "change", NETWORK, "dev", DEVICE, "src", node.address, "congctl", shape.congestion])
    if shape.loss_ratio:
        often = ["--mode", "random", "--probability", f"{shape.loss_ratio:.9f}"]
        _run(node.command(["iptables", "-A", "INPUT", "-i", DEVICE, "-m", "statistic", *often, "-j", "DROP"]))


class _Shim:
    """The process in the middle. It inherits the descriptors `tuns`."""

    def __init__(self, shape: WanShape, tuns: Sequence[int]) -> None:
        numbers = (shape.bytes_per_s, shape.rtt_seconds / 2, shape.queue_bytes or shape.product_bytes)
        ours, theirs = socket.socketpair()
        ours.settimeout(STOP_SECONDS)
        words = ["--tuns", ",".join(map(str, tuns)), "--shape", ",".join(map(str, numbers))]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "aurora_p2p.testing.wan_shim", *words],
                pass_fds=tuns,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
            )
        self._channel, self._lines = ours, ours.makefile("rb")

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self) -> bytes:
        """Its counters, one line of JSON; empty when it is dead."""
        try:
            self._channel.sendall(b"?")
            return self._lines.readline()
        except OSError:
            return b""

    def stop(self) -> None:
        self._lines.close()
        self._channel.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _run(words: Sequence[str]) -> str:
    """What a command prints. Raises LabError with its complaint."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(words)}` failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout
