"""Our build of the libp2p host: TCP + Noise + Yamux and nothing else, with the traps of py-libp2p 0.8.1 closed here.

    trap in the library                                        what is done about it
    secio, plaintext, mplex and TLS are offered by default     security and muxer are named explicitly
    an exception in any stream handler ends the whole host     `_guarded`: log with traceback, reset that stream
    listen() swallows failures and sets SO_REUSEPORT, so two   the port is probed without SO_REUSEPORT before, and the
      programs can share a port in silence                       listeners are counted after
    it dials known peers by itself when few are connected      watermarks of 0: only our callers decide whom to dial
    connect() waits 250 ms, tries one of the addresses heard   `dial_addr`: this address, at once, without retries
      of, thrice, then refuses that peer for 60 s
    a vanished peer is never noticed, a stuck write never ends TCP keep-alive and TCP_USER_TIMEOUT on every socket
    each accepted connection is counted until the host ends,   its handler is ended after the connection has closed
      so after 300 visitors nobody gets in
    connections are denied while the machine's memory is full  a resource manager that only counts
    it remembers peers that have left: addresses, records,     `_Forgetful`: with the last connection goes all of it;
      keys, a rate each, up to 7 KB a visitor                    no rates (an identity costs a stranger nothing)
    it logs what strangers do, in part on the root logger      only CRITICAL passes

Invariant: libp2p and multiaddr objects do not leave net/. Relays and hole punching are not covered.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
import trio
from libp2p import new_swarm
from libp2p.abc import INotifee
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.exceptions import BaseLibp2pError, MultiError
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.rcmgr import ResourceLimits, ResourceManager
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from aurora_p2p.crypto.identity import Identity, public_key_of
from aurora_p2p.errors import PortInUseError, UnreachableError, UsageError, WireError
from aurora_p2p.types import PeerId

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 300
"""libp2p connections of one program: a roster's neighbours and visitors, at about 0.2 MB and 6 tasks each."""
MAX_STREAMS = 4096
"""Open streams over all connections."""
NEGOTIATE_SECONDS = 10
"""For a handshake or the choice of a protocol: a few small messages."""
VANISHED_SECONDS = 20
"""A connection that takes no bytes for this long is ended by the kernel."""
LET_GO_SECONDS = 1.0
"""After a connection was closed, for libp2p's own clean-up of it."""
CLOSE_SECONDS = 5.0
"""For saying goodbye to all peers on leaving."""
STREAM_FAULTS = (
    BaseLibp2pError,
    OSError,
    EOFError,
    KeyError,
    ValueError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
)
"""What libp2p raises when a peer is gone or talks nonsense (KeyError, ValueError: its closed tables, its parsers)."""

Stream = Any
"""A libp2p INetStream."""
StreamHandler = Callable[[Stream], Awaitable[None]]


class _Tcp(TCP):  # type: ignore[misc]  # libp2p is untyped to us
    """TCP whose connections end by themselves when the other side vanishes, and leave nothing behind."""

    async def dial(self, maddr: Any) -> Any:
        connection = await super().dial(maddr)
        _end_when_vanished(connection.stream.stream)
        return connection

    def create_listener(self, handler_function: StreamHandler) -> Any:
        """The library's handler of an accepted connection waits, holding one of MAX_CONNECTIONS, for the host's end."""

        async def accepted(stream: Any) -> None:
            _end_when_vanished(stream.stream)
            close = stream.close

            async def close_and_let_go() -> None:
                await close()
                scope.deadline = min(scope.deadline, trio.current_time() + LET_GO_SECONDS)

            stream.close = close_and_let_go
            with trio.CancelScope() as scope:
                await handler_function(stream)

        return super().create_listener(accepted)


def _end_when_vanished(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_SECONDS * 1000)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_SECONDS // 2)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_SECONDS // 4)


class _Forgetful(INotifee):  # type: ignore[misc]
    """Whoever has no connection left is forgotten: a bootstrap meets strangers for months."""

    async def disconnected(self, network: Any, conn: Any) -> None:
        peer = conn.muxed_conn.peer_id
        if not network.get_connections(peer):
            network.peerstore.clear_peerdata(peer)

    async def connected(self, network: Any, conn: Any) -> None:
        pass

    async def opened_stream(self, network: Any, stream: Any) -> None:
        pass

    async def closed_stream(self, network: Any, stream: Any) -> None:
        pass

    async def listen(self, network: Any, multiaddr: Any) -> None:
        pass

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        pass


def _guarded(handle: StreamHandler) -> StreamHandler:
    """The one place where exceptions of stream handlers end, ours and libp2p's own (identify, ping, gossip)."""

    async def guarded(stream: Stream) -> None:
        try:
            await handle(stream)
        except Exception as error:  # whatever escapes here would end the host and all its connections
            if not isinstance(error, STREAM_FAULTS):
                log.exception("a stream handler failed; its stream is reset")
            await stream.reset()

    return guarded


def _reachable(addresses: Sequence[Any]) -> list[Any]:
    """Listening addresses as others can dial them: a wildcard becomes the machine's addresses, at worst loopback."""
    found = []
    for address in map(str, addresses):
        _, family, ip, rest = address.split("/", 3)
        ips = _interface_ips(family) if ipaddress.ip_address(ip).is_unspecified else [ip]
        found += [Multiaddr(f"/{family}/{one}/{rest}") for one in ips]
    return found


def _interface_ips(family: str) -> list[str]:
    wanted = socket.AF_INET if family == "ip4" else socket.AF_INET6
    every = [a.address for links in psutil.net_if_addrs().values() for a in links if a.family == wanted]
    usable = [ip for ip in every if "%" not in ip]
    return [ip for ip in usable if not ipaddress.ip_address(ip).is_loopback] or usable


def _require_free(listen: Sequence[str]) -> list[Any]:
    """The parsed addresses. Raises UsageError for a malformed one, PortInUseError when someone listens there."""
    parsed = []
    for text in listen:
        try:
            address = Multiaddr(text)
            _, family, ip, transport, port = text.split("/")
            bound = (str(ipaddress.ip_address(ip)), int(port))
        except (MultiaddrError, ValueError) as error:
            raise UsageError(f"cannot listen on {text!r}", hint="write it like /ip4/127.0.0.1/tcp/4101") from error
        if transport != "tcp":
            raise UsageError(f"cannot listen on {text!r}: only TCP is spoken")
        _probe(socket.AF_INET if family == "ip4" else socket.AF_INET6, bound)
        parsed.append(address)
    return parsed


def _probe(family: int, bound: tuple[str, int]) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an old connection in TIME_WAIT is no owner
        try:
            probe.bind(bound)
        except OSError as error:
            raise PortInUseError(
                f"cannot listen on {bound[0]} port {bound[1]}: {error.strerror}",
                hint="stop the other program, or choose another port with --listen",
            ) from error


def _quiet() -> None:
    """Peers' faults reach our callers as values; libp2p's own words about them stay out of the terminal."""
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    logging.getLogger("libp2p.network.auto_connector").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_libp2p)  # some of its modules log on the root logger


def _not_libp2p(record: logging.LogRecord) -> bool:
    return "libp2p" not in record.pathname or record.levelno >= logging.CRITICAL


def _build(identity: Identity) -> Any:
    keys = create_new_key_pair(identity.seed)
    noise = NoiseTransport(keys, noise_privkey=create_noise_key_pair().private_key)
    swarm = new_swarm(
        key_pair=keys,
        sec_opt={NOISE: noise},
        muxer_opt={YAMUX: Yamux},
        transports=[_Tcp()],
        retry_config=RetryConfig(max_retries=0),
        connection_config=ConnectionConfig(
            max_connections=MAX_CONNECTIONS, high_watermark=MAX_CONNECTIONS, min_connections=0, low_watermark=0
        ),
        resource_manager=ResourceManager(
            limits=ResourceLimits(max_connections=MAX_CONNECTIONS, max_streams=MAX_STREAMS),
            enable_memory_limits=False,
            enable_circuit_breaker=False,
            enable_graceful_degradation=False,
            enable_rate_limiting=False,
        ),
    )
    host = BasicHost(
        swarm,
        negotiate_timeout=NEGOTIATE_SECONDS,
        addrs_factory=_reachable,
        disable_identify_address_discovery=True,
    )
    swarm.set_stream_handler(_guarded(host._swarm_stream_handler))
    swarm.register_notifee(_Forgetful())
    return host


@asynccontextmanager
async def open_libp2p(identity: Identity, listen: Sequence[str]) -> AsyncIterator[Any]:
    """A running BasicHost that listens on all of `listen`. Raises UsageError, PortInUseError."""
    addresses = _require_free(listen)
    _quiet()
    host = _build(identity)
    async with host.run(addresses):
        try:
            if len(host.get_transport_addrs()) != len(addresses):
                raise PortInUseError(f"cannot listen on all of {', '.join(listen)}", hint="choose other ports")
            yield host
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await host.close()


def parse_target(address: str) -> tuple[PeerId, Any]:
    """(peer id, multiaddr) of "/ip4|ip6/<literal>/tcp/<port>/p2p/<peer id>". Raises WireError."""
    parts = address.split("/") if len(address) <= 256 else []
    try:
        if len(parts) != 7 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp" or parts[5] != "p2p":
            raise ValueError(address)
        public_key_of(parts[6])
        return PeerId(parts[6]), Multiaddr(address)
    except (MultiaddrError, ValueError, WireError) as error:
        raise WireError(f"{address[:128]!r} is not an address like /ip4/192.0.2.1/tcp/4101/p2p/12D3Koo...") from error


async def dial(host: Any, peer: PeerId, address: Any, *, seconds: float) -> None:
    """Connect to exactly this address unless connected already. Raises UnreachableError within `seconds`."""
    target, swarm = ID.from_base58(peer), host.get_network()
    if swarm.get_connections(target):
        return
    reason = f"no answer within {seconds:g} s"
    with trio.move_on_after(seconds):
        try:
            await swarm.dial_addr(address, target)
        except STREAM_FAULTS as error:
            reason = _root_cause(error)
        else:
            return
    raise UnreachableError(f"cannot reach {address}: {reason}", hint="is it running, and is the address right?")


def _root_cause(error: BaseException) -> str:
    while True:
        if isinstance(error, MultiError) and error.errors:
            error = error.errors[-1]
        elif isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__cause__ is not None:
            error = error.__cause__
        else:
            return str(error) or type(error).__name__
