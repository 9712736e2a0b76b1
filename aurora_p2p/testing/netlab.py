"""A network laboratory of Linux network namespaces: real TCP between processes whose access lines have a rate.

    node 0  eth0 --veth--> p0 ┐
    node 1  eth0 --veth--> p1 ┴ bridge of region 0 ══ xa/xb, the cut ══ bridge of region 1 ┬ p2 <--veth-- node 2 ...
    (a namespace each)          (the hub, one namespace)

A node's upload is shaped by a token bucket (`tc tbf`) on its eth0, its download by one on its port of the hub, the cut
by one on each side. Queues drop what waits longer than QUEUE_MILLISECONDS. Addresses are 198.18.0.0/15 (RFC 2544,
benchmarks), one /24 for each node; there is no default route and no IPv6, so nothing leaves the machine. Routes carry
their congestion control, whatever the machine's default is. Delay and loss are not emulated here.

Names start with `aurora-<pid>-`: `open_lab` removes what dead processes left behind, and its own whatever happens.
Needs root, `ip` and `tc` (iproute2). Processes inside are the caller's to end before it leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aurora_p2p.errors import ChildError, UsageError

NETWORK = "198.18.0.0/15"
PREFIX_BITS = 15
QUEUE_MILLISECONDS = 50
BURST_SECONDS = 0.004
"""What a bucket may let through at once: under a fast timer's jitter, and far from hiding the rate."""
MIN_BURST = 32 * 1024
"""Bytes. A smaller bucket cuts the kernel's large packets up and costs CPU."""
MAX_PACKET = 30_000
"""Bytes of the kernel's large packets (GSO): they fit MIN_BURST, or tbf would cut them into 1,500 bytes each and the
emulation would cost twice the CPU of what it emulates. Network cards cut packets themselves."""
MAX_NODES = 200
LIMIT_SECONDS = 20.0
"""For one `ip` or `tc`: each takes milliseconds."""
TOOLS = ("ip", "tc")
CLONE_NEWNET = 0x40000000
"""sched.h: setns() into a network namespace."""
NAMES = Path("/run/netns")


class LabError(ChildError):
    """A command that builds the laboratory failed."""


@dataclass(frozen=True, slots=True)
class Access:
    """One node's line, Mbit/s at the link (payload is about 0.956 of it), and the region it is in: 0 or 1."""

    up: float
    down: float
    region: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes that a node's line carried since it was made, headers included."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class LabNode:
    namespace: str
    port: str
    """Its device in the hub."""
    address: str
    access: Access

    def command(self, words: Sequence[str]) -> list[str]:
        """The argument list that runs `words` inside; the process keeps the pid it is started with."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def socket(self) -> socket.socket:
        """A TCP socket of this node, usable by any thread of this process."""
        made: list[socket.socket | OSError] = []
        thread = threading.Thread(target=lambda: made.append(_socket_in(self.namespace)))
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise LabError(f"no socket in {self.namespace}: {made[0].strerror}") from made[0]
        return made[0]


@dataclass(frozen=True, slots=True)
class Lab:
    hub: str
    nodes: tuple[LabNode, ...]

    def counts(self) -> list[Counts]:
        """Of each node, in order, from the counters of the hub's devices."""
        links = json.loads(_run(["ip", "-n", self.hub, "-j", "-s", "link"]))
        stats = {link["ifname"]: link.get("stats64", {}) for link in links}
        return [Counts(_bytes(stats[node.port], "rx"), _bytes(stats[node.port], "tx")) for node in self.nodes]


@contextmanager
def open_lab(lines: Sequence[Access], *, cut: float = 0.0, congestion: str = "cubic") -> Iterator[Lab]:
    """Build namespaces, one for each line, and take them down again.

    cut: Mbit/s between regions 0 and 1, each way; needed if there are two. congestion: the kernel's name for it.
    Raises UsageError when the machine or the lines cannot do that, LabError when the kernel refuses.
    """
    require_tools()
    _check(lines, cut)
    remove_stale()
    prefix = f"aurora-{os.getpid()}"
    nodes = tuple(
        LabNode(f"{prefix}-n{number}", f"p{number}", f"198.18.{number + 1}.1", line)
        for number, line in enumerate(lines)
    )
    lab = Lab(f"{prefix}-hub", nodes)
    try:
        _build(lab, cut, congestion)
        yield lab
    finally:
        for name in [lab.hub, *(node.namespace for node in nodes)]:
            _remove(name)


def missing() -> str:
    """Why there can be no laboratory on this machine; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def require_tools() -> None:
    """Raises UsageError unless this process can build namespaces."""
    why = missing()
    if why:
        hint = "apt-get install iproute2" if os.geteuid() == 0 else "run it with sudo"
        raise UsageError(f"no network laboratory here: {why}", hint=hint)


def remove_stale() -> list[str]:
    """Take down the namespaces of laboratories whose process is gone; returns their names."""
    found = sorted(path.name for path in NAMES.glob("aurora-*-*")) if NAMES.is_dir() else []
    stale = [name for name in found if _is_stale(name)]
    for name in stale:
        _remove(name)
    return stale


def burst_bytes(mbit: float) -> int:
    return max(int(mbit * 1e6 / 8 * BURST_SECONDS), MIN_BURST)


def _check(lines: Sequence[Access], cut: float) -> None:
    if not 1 <= len(lines) <= MAX_NODES:
        raise UsageError(f"{len(lines)} nodes: 1 to {MAX_NODES} are possible")
    if any(line.up <= 0 or line.down <= 0 or line.region not in (0, 1) for line in lines):
        raise UsageError("a line needs rates above 0 and region 0 or 1")
    if cut <= 0 and len({line.region for line in lines}) > 1:
        raise UsageError("two regions need the rate of the cut between them", hint="pass cut=50.0, in Mbit/s")


def _build(lab: Lab, cut: float, congestion: str) -> None:
    _batch(["ip"], [f"netns add {name}" for name in (lab.hub, *(node.namespace for node in lab.nodes))])
    _keep_filters_out(lab.hub)
    bridges = ["bra", "brb"] if cut else ["bra"]
    hub = [line for name in bridges for line in (f"link add {name} type bridge", *_up(name))]
    if cut:
        hub += ["link add xa type veth peer name xb", "link set xa master bra", "link set xb master brb"]
        hub += [*_up("xa"), *_up("xb")]
    for node in lab.nodes:
        hub.append(f"link add {node.port} type veth peer name eth0 netns {node.namespace}")
        hub += [f"link set {node.port} master {bridges[node.access.region]}", *_up(node.port)]
    _batch(["ip", "-n", lab.hub], ["link set lo up", *hub])
    shaped = [(node.port, node.access.down) for node in lab.nodes] + [(end, cut) for end in ("xa", "xb") if cut]
    _batch(["tc", "-n", lab.hub], [_shape(device, rate) for device, rate in shaped])
    for node in lab.nodes:
        large = f"link set eth0 gso_max_size {MAX_PACKET}"
        inside = [*_up("lo"), large, f"addr add {node.address}/{PREFIX_BITS} dev eth0", *_up("eth0")]
        route = f"route change {NETWORK} dev eth0 src {node.address} congctl {congestion}"
        _batch(["ip", "-n", node.namespace], [*inside, route])
        _batch(["tc", "-n", node.namespace], [_shape("eth0", node.access.up)])


def _keep_filters_out(hub: str) -> None:
    """Where the kernel shows bridged packets to iptables, switch that off: it costs CPU for every packet."""
    setting = "/proc/sys/net/bridge/bridge-nf-call-iptables"
    _run(["ip", "netns", "exec", hub, "sh", "-c", f"! test -e {setting} || echo 0 > {setting}"])


def _up(device: str) -> tuple[str, ...]:
    """Without an IPv6 link address: neighbour discovery would only add noise to the counters."""
    quiet = () if device == "lo" else (f"link set {device} addrgenmode none",)
    return (*quiet, f"link set {device} up")


def _shape(device: str, mbit: float) -> str:
    kbit, burst = int(mbit * 1000), burst_bytes(mbit)
    return f"qdisc add dev {device} root tbf rate {kbit}kbit burst {burst} latency {QUEUE_MILLISECONDS}ms"


def _batch(program: list[str], lines: list[str]) -> None:
    _run([*program, "-batch", "-"], "\n".join(lines) + "\n")


def _run(words: list[str], text: str = "") -> str:
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    if done.returncode:
        raise LabError(f"`{' '.join(words)}` failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout


def _remove(name: str) -> None:
    with contextlib.suppress(LabError):  # it was never made, or somebody else was faster
        _run(["ip", "netns", "del", name])


def _is_stale(name: str) -> bool:
    pid = name.split("-")[1]
    return pid.isdecimal() and not Path(f"/proc/{pid}").exists()


def _bytes(stats: dict[str, Any], way: str) -> int:
    return int(stats[way]["bytes"])


def _socket_in(namespace: str) -> socket.socket | OSError:
    """Runs in a thread of its own, which ends in the foreign namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(NAMES / namespace, os.O_RDONLY)
        try:
            if libc.setns(descriptor, CLONE_NEWNET):
                number = ctypes.get_errno()
                return OSError(number, os.strerror(number))
            return socket.socket()
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
