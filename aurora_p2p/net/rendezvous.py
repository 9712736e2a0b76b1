"""Rendezvous (libp2p rendezvous spec, /rendezvous/1.0.0): peers of one namespace find each other through a bootstrap.

    REGISTER    peer -> bootstrap: my addresses under a namespace, for ttl seconds; a peer can register only itself
    UNREGISTER  peer -> bootstrap
    DISCOVER    peer -> bootstrap: a random choice of at most `limit` registrations of a namespace

The bootstrap signs nothing, so what it answers are hints: it can hide peers, it cannot forge them. `Registry` is the
service without I/O: bounded in every direction, a full one refuses newcomers and keeps those it has. The client half
(`advertise`, `discover`, `keep_advertised`) belongs to nodes and hosts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
import varint  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError
from libp2p.discovery.rendezvous.messages import (
    create_discover_message,
    create_discover_response_message,
    create_register_message,
    create_register_response_message,
)
from libp2p.discovery.rendezvous.pb.rendezvous_pb2 import Message
from libp2p.io.exceptions import IncompleteReadError, MessageTooLarge
from libp2p.peer.id import ID
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from aurora_p2p.errors import RefusedError, UnreachableError, WireError
from aurora_p2p.net.stack import STREAM_FAULTS, Stream, parse_target
from aurora_p2p.types import PeerId

if TYPE_CHECKING:
    import random

    from aurora_p2p.net.host import ControlHost

log = logging.getLogger(__name__)

PROTOCOL = "/rendezvous/1.0.0"
MAX_MESSAGE = 1 << 18
"""Bytes of one message: MAX_DISCOVER registrations of MAX_ADDRESSES addresses fit."""
MAX_NAMESPACE = 256
"""Characters; a swarm id has 52."""
MAX_ADDRESSES = 8
MAX_ADDRESS = 128
"""Bytes of one binary multiaddr."""
MAX_DISCOVER = 100
"""Registrations in one answer."""
MAX_TTL_SECONDS = 2 * 3600
TTL_SECONDS = 600
"""What peers ask for: one that is gone is handed out for at most ten minutes."""
RETRY_SECONDS = 15.0
"""Between two attempts to reach a bootstrap that does not answer."""
VISIT_SECONDS = 60.0
"""One stream to the bootstrap: a few messages, then it is closed."""
SWEEP_SECONDS = 10.0
"""A full registry looks for expired entries at most this often."""


class Registration(NamedTuple):
    addresses: tuple[bytes, ...]
    expires: float


@dataclass(slots=True)
class Registry:
    """Who is where, until when. `register` returns whether it was taken; `now` in seconds, any monotonic clock."""

    max_registrations: int = 16_384
    max_per_namespace: int = 2_048
    max_per_peer: int = 8
    asked: Counter[str] = field(default_factory=Counter)
    """Requests by kind, since the start."""
    refused: Counter[str] = field(default_factory=Counter)
    """Those not granted, by reason."""
    _namespaces: dict[str, dict[PeerId, Registration]] = field(default_factory=dict)
    _per_peer: Counter[PeerId] = field(default_factory=Counter)
    _next_sweep: float = 0.0

    def __len__(self) -> int:
        return self._per_peer.total()

    @property
    def namespaces(self) -> int:
        """Swarms that somebody is registered for."""
        return len(self._namespaces)

    def register(
        self, peer: PeerId, namespace: str, addresses: Sequence[bytes], ttl_seconds: float, *, now: float
    ) -> bool:
        members = self._namespaces.get(namespace, {})
        if peer not in members:
            if self._is_full(len(members)) and now >= self._next_sweep:
                self._sweep(now)
                members = self._namespaces.get(namespace, {})
            if self._is_full(len(members)) or self._per_peer.get(peer, 0) >= self.max_per_peer:
                return False
            self._namespaces.setdefault(namespace, members)
            self._per_peer[peer] += 1
        members[peer] = Registration(tuple(addresses), now + ttl_seconds)
        return True

    def unregister(self, peer: PeerId, namespace: str) -> None:
        members = self._namespaces.get(namespace, {})
        if members.pop(peer, None) is None:
            return
        self._per_peer[peer] -= 1
        if not self._per_peer[peer]:
            del self._per_peer[peer]
        if not members:
            del self._namespaces[namespace]

    def discover(
        self, namespace: str, limit: int, *, now: float, chance: random.Random
    ) -> list[tuple[PeerId, Registration]]:
        """At most `limit` living registrations, chosen at random: a crowd of strangers hides nobody for long."""
        living = [(peer, kept) for peer, kept in self._namespaces.get(namespace, {}).items() if kept.expires > now]
        return chance.sample(living, min(limit, len(living)))

    def _is_full(self, members: int) -> bool:
        return len(self) >= self.max_registrations or members >= self.max_per_namespace

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + SWEEP_SECONDS
        gone = [(p, n) for n, members in self._namespaces.items() for p, kept in members.items() if kept.expires <= now]
        for peer, namespace in gone:
            self.unregister(peer, namespace)


def serve_rendezvous(
    host: ControlHost, registry: Registry, *, clock: Callable[[], float], chance: random.Random
) -> None:
    """Answer rendezvous visits on this host from `registry`."""

    async def visit(peer: PeerId, stream: Stream) -> None:
        with trio.move_on_after(VISIT_SECONDS):
            while (request := await _read(stream)) is not None:
                reply = _reply(registry, peer, request, clock(), chance)
                if reply is not None:
                    await _write(stream, reply)

    host.serve_stream(PROTOCOL, visit)


def _reply(registry: Registry, peer: PeerId, request: Any, now: float, chance: random.Random) -> Any:
    if request.type == Message.REGISTER:
        registry.asked["register"] += 1
        return _register(registry, peer, request.register, now)
    if request.type == Message.DISCOVER:
        registry.asked["discover"] += 1
        return _discover(registry, request.discover, now, chance)
    if request.type == Message.UNREGISTER:
        registry.asked["unregister"] += 1
        registry.unregister(peer, request.unregister.ns)
        return None
    registry.refused["malformed"] += 1
    raise WireError(f"a rendezvous message of type {request.type}")


def _register(registry: Registry, peer: PeerId, asked: Any, now: float) -> Any:
    ttl, addresses = asked.ttl or TTL_SECONDS, list(asked.peer.addrs)
    if asked.peer.id != ID.from_base58(peer).to_bytes():
        status = Message.ResponseStatus.E_NOT_AUTHORIZED
    elif not 0 < len(asked.ns) <= MAX_NAMESPACE:
        status = Message.ResponseStatus.E_INVALID_NAMESPACE
    elif not 0 < ttl <= MAX_TTL_SECONDS:
        status = Message.ResponseStatus.E_INVALID_TTL
    elif not 0 < len(addresses) <= MAX_ADDRESSES or max(map(len, addresses)) > MAX_ADDRESS:
        status = Message.ResponseStatus.E_INVALID_PEER_INFO
    elif not registry.register(peer, asked.ns, addresses, ttl, now=now):
        status = Message.ResponseStatus.E_UNAVAILABLE
    else:
        status = Message.ResponseStatus.OK
    if status != Message.ResponseStatus.OK:
        registry.refused[_reason(status)] += 1
    return create_register_response_message(status, "", ttl)


def _discover(registry: Registry, asked: Any, now: float, chance: random.Random) -> Any:
    limit = min(asked.limit or MAX_DISCOVER, MAX_DISCOVER)
    found = []
    for peer, kept in registry.discover(asked.ns, limit, now=now, chance=chance):
        entry = Message.Register(ns=asked.ns, ttl=int(kept.expires - now))
        entry.peer.id = ID.from_base58(peer).to_bytes()
        entry.peer.addrs.extend(kept.addresses)
        found.append(entry)
    return create_discover_response_message(found)


async def _read(stream: Stream) -> Any:
    """The next message, None at the end of the stream. Raises WireError."""
    try:
        body = await read_varint_prefixed_bytes_limited(stream, MAX_MESSAGE)
    except IncompleteReadError as error:
        if error.is_clean_close:
            return None
        raise WireError("a rendezvous message cut short") from error
    except MessageTooLarge as error:
        raise WireError(f"a rendezvous message over {MAX_MESSAGE} bytes") from error
    message = Message()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise WireError(f"not a rendezvous message: {error}") from error
    return message


async def _write(stream: Stream, message: Any) -> None:
    body = message.SerializeToString()
    await stream.write(varint.encode(len(body)) + body)


async def advertise(host: ControlHost, bootstrap: PeerId, namespace: str, *, seconds: float = 10.0) -> float:
    """Register this host's addresses; returns for how many seconds they are kept.

    The host must be connected to the bootstrap. Raises UnreachableError, RefusedError, WireError.
    """
    addresses = [Multiaddr(address) for address in host.addresses()][:MAX_ADDRESSES]
    message = create_register_message(namespace, ID.from_base58(host.peer), addresses, TTL_SECONDS)
    reply = (await _visit(host, bootstrap, message, seconds)).registerResponse
    _require_ok(bootstrap, reply.status)
    return float(min(reply.ttl, TTL_SECONDS))


async def discover(
    host: ControlHost, bootstrap: PeerId, namespace: str, *, limit: int = MAX_DISCOVER, seconds: float = 10.0
) -> list[tuple[PeerId, tuple[str, ...]]]:
    """Peers of a namespace with their dialable addresses: hints, signed by nobody. Raises as `advertise`."""
    message = create_discover_message(namespace, limit)
    reply = (await _visit(host, bootstrap, message, seconds)).discoverResponse
    _require_ok(bootstrap, reply.status)
    hints = [_hint(entry.peer) for entry in reply.registrations[:limit]]
    return [hint for hint in hints if hint is not None]


async def keep_advertised(host: ControlHost, address: str, namespace: str) -> None:
    """Stay connected to the bootstrap at `address` and registered there, until cancelled."""
    while True:
        try:
            bootstrap = await host.connect(address, seconds=VISIT_SECONDS)
            pause = await advertise(host, bootstrap, namespace) / 3
        except (UnreachableError, RefusedError, WireError) as error:
            log.info("not registered: %s", error)
            pause = RETRY_SECONDS
        await trio.sleep(max(pause, RETRY_SECONDS))


async def _visit(host: ControlHost, bootstrap: PeerId, message: Any, seconds: float) -> Any:
    async def ask(stream: Stream) -> Any:
        await _write(stream, message)
        return await _read(stream)

    with trio.move_on_after(seconds):
        try:
            reply = await host.call_stream(bootstrap, PROTOCOL, ask)
        except STREAM_FAULTS as error:
            raise UnreachableError(f"the bootstrap {bootstrap} broke off: {error or type(error).__name__}") from error
        if reply is None:
            raise UnreachableError(f"the bootstrap {bootstrap} closed the stream without an answer")
        return reply
    raise UnreachableError(f"the bootstrap {bootstrap} gave no answer within {seconds:g} s")


def _require_ok(bootstrap: PeerId, status: Any) -> None:
    if status != Message.ResponseStatus.OK:
        name = _reason(status)
        raise RefusedError(f"the bootstrap {bootstrap} refuses: {name}", reason=name)


def _reason(status: Any) -> str:
    return str(Message.ResponseStatus.Name(status)).removeprefix("E_").lower()


def _hint(entry: Any) -> tuple[PeerId, tuple[str, ...]] | None:
    """A registration, if its peer id and at least one of its addresses can be used here."""
    peer, addresses = str(ID(entry.id)), []
    for raw in entry.addrs[:MAX_ADDRESSES]:
        try:
            addresses.append(f"{Multiaddr(raw)}/p2p/{peer}")
            parse_target(addresses[-1])
        except (MultiaddrError, ValueError, WireError):
            return None
    return (PeerId(peer), tuple(addresses)) if addresses else None
