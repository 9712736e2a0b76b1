"""The control plane of one program: requests, served protocols, gossip and rendezvous over libp2p (net/stack.py).

    async with open_control_host(identity, ["/ip4/0.0.0.0/tcp/4101"]) as host:
        host.serve("/aurora/control/1", Request, answer)
        peer = await host.connect("/ip4/192.0.2.1/tcp/4101/p2p/12D3Koo...", seconds=10)
        reply = await host.request(peer, "/aurora/control/1", Challenge(nonce), Reply, seconds=10)

One stream per (peer, protocol) is kept and reused; on it one request is answered at a time, so a request that waits
long at the other side (a lease) has a protocol string of its own. Invariants: every wait on a peer ends by its
deadline, whatever libp2p does meanwhile; a frame is written whole or the connection ends (Noise counts them); a peer's
garbage costs that peer one stream. What is not covered: who may talk to us (callers check membership), and dialling:
`request` never dials, `connect` dials exactly the address it was given.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import trio
from libp2p.peer.id import ID

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import UnreachableError, WireError
from aurora_p2p.net.gossip import Gossip, Messages, Valid, accept_all, open_gossip
from aurora_p2p.net.stack import STREAM_FAULTS, Stream, dial, open_libp2p, parse_target
from aurora_p2p.net.unhurried import quietly, unhurried
from aurora_p2p.types import PeerId, Record
from aurora_p2p.wire.codec import MAX_MESSAGE, decode, encode
from aurora_p2p.wire.frame import FrameDecoder, encode_frame

log = logging.getLogger(__name__)

T = TypeVar("T")
In = TypeVar("In")
OnFault = Callable[[PeerId, str], None]

IDLE_SECONDS = 300.0
"""A served stream without a request for this long is closed; the asking side reopens it unasked."""
STALE_SECONDS = IDLE_SECONDS / 2
"""The asking side opens a new stream rather than race the other side's idle deadline."""
FRAME_SECONDS = 30.0
"""From the first to the last byte of one request: 4 MiB at a slow uplink; slower is a slow-loris."""
MAX_STREAMS_PER_PEER = 8
"""Streams of one peer on one served protocol: one in use, the others given up and not yet reset."""
READ_BYTES = 1 << 16


@dataclass(slots=True)
class _Line:
    """The kept stream to one (peer, protocol); `lock` orders the requests on it."""

    lock: trio.Lock
    stream: Stream | None = None
    used: float = 0.0

    def is_fresh(self) -> bool:
        """Whether a stream is kept and nothing has happened yet that would make a request on it fail."""
        if self.stream is None or self.used + STALE_SECONDS < trio.current_time():
            return False
        muxed = self.stream.muxed_stream
        return not (muxed.closed or muxed.recv_closed or muxed.conn.event_shutting_down.is_set())

    def take(self) -> Stream:
        """The kept stream, which must be given back after a good answer."""
        stream, self.stream = self.stream, None
        return stream


class ControlHost:
    """See the module. Made by `open_control_host`."""

    def __init__(
        self, identity: Identity, libp2p: Any, nursery: trio.Nursery, gossip: Gossip | None, on_fault: OnFault
    ) -> None:
        self.peer = identity.peer
        self._libp2p, self._nursery, self._gossip, self._on_fault = libp2p, nursery, gossip, on_fault
        self._lines: dict[tuple[PeerId, str], _Line] = {}
        self._served: Counter[tuple[PeerId, str]] = Counter()

    def addresses(self) -> tuple[str, ...]:
        """Where others can dial this host: "/ip4/.../tcp/.../p2p/<peer>", a wildcard replaced by real addresses."""
        return tuple(str(address) for address in self._libp2p.get_addrs())

    def is_connected(self, peer: PeerId) -> bool:
        return bool(self._libp2p.get_network().get_connections(ID.from_base58(peer)))

    def ip_of(self, peer: PeerId) -> str:
        """Where a peer's connection comes from, as our own kernel names it; empty when it has none."""
        for connection in self._libp2p.get_network().get_connections(ID.from_base58(peer)):
            address = connection.muxed_conn.secured_conn.get_remote_address()  # the socket's, not the peerstore's
            if address is not None:
                return str(address[0])
        return ""

    @property
    def connections(self) -> int:
        """Open libp2p connections, both ways."""
        return len(self._libp2p.get_network().get_connections())

    async def connect(self, address: str, *, seconds: float) -> PeerId:
        """Connect unless connected already; returns the peer, who has proved to own that id.

        Raises WireError for a malformed address, UnreachableError with the reason.
        """
        peer, target = parse_target(address)
        self._lines = {key: line for key, line in self._lines.items() if line.is_fresh() or line.lock.locked()}
        await dial(self._libp2p, peer, target, seconds=seconds)
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to a peer, in the background."""
        for key in [key for key in self._lines if key[0] == peer]:
            del self._lines[key]
        self._nursery.start_soon(quietly, partial(self._libp2p.disconnect, ID.from_base58(peer)))

    async def request(
        self, peer: PeerId, protocol: str, message: Record, reply: type[T], *, seconds: float, limit: int = MAX_MESSAGE
    ) -> T:
        """Send one request and return its answer, at most `limit` bytes.

        Raises UnreachableError (not connected, no answer in time, closed), WireError (the answer is not a `reply`).
        A request that fails may have been carried out: repeating it is safe only where the protocol says so.
        """
        frame = encode_frame(encode(message))
        line = self._lines.setdefault((peer, protocol), _Line(trio.Lock()))
        with trio.move_on_after(seconds):
            async with line.lock:
                try:
                    return decode(await self._exchange(line, peer, protocol, frame, limit), reply, limit=limit)
                except STREAM_FAULTS as error:
                    reason = str(error) or type(error).__name__
                    raise UnreachableError(f"{peer} broke off {protocol}: {reason}") from error
        raise UnreachableError(f"{peer} gave no answer on {protocol} within {seconds:g} s")

    def serve(
        self,
        protocol: str,
        kind: type[In],
        handler: Callable[[PeerId, In], Awaitable[Record]],
        *,
        limit: int = MAX_MESSAGE,
    ) -> None:
        """Answer requests of `kind` (a Record or a union), at most `limit` bytes, with what `handler` returns.

        Handlers of different peers run at the same time; each must end by itself, also when its asker has gone. A
        WireError out of a handler is the peer's fault; any other exception is our bug: it is logged with its traceback.
        Both reset that one stream.
        """

        async def talk(peer: PeerId, stream: Stream) -> None:
            while (body := await _read_frame(stream, limit, IDLE_SECONDS, FRAME_SECONDS)) is not None:
                request = decode(body, kind, limit=limit)
                try:
                    reply = await handler(peer, request)
                except STREAM_FAULTS as error:  # else it would pass for a fault of this stream, unlogged
                    raise RuntimeError(f"the handler of {protocol} failed") from error
                await stream.write(encode_frame(encode(reply)))

        self.serve_stream(protocol, talk)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Gossip at most MAX_GOSSIP bytes, signed by this host. Best effort: subscribers may never see it."""
        await self._require_gossip().publish(topic, payload)

    def subscribe(self, topic: str, valid: Valid = accept_all) -> AbstractAsyncContextManager[Messages]:
        """`async with host.subscribe(topic) as messages: async for signer, payload in messages`.

        Only messages for which `valid(signer, payload)` holds are delivered and passed on. Slow readers lose some.
        """
        return self._require_gossip().subscribe(topic, valid)

    async def call_stream(self, peer: PeerId, protocol: str, talk: Callable[[Stream], Awaitable[T]]) -> T:
        """Talk on a fresh stream of a foreign protocol, then reset it. Raises STREAM_FAULTS; callers set a deadline."""
        stream = await self._open(peer, protocol)
        try:
            return await talk(stream)
        finally:
            self._nursery.start_soon(quietly, stream.reset)

    def serve_stream(self, protocol: str, talk: Callable[[PeerId, Stream], Awaitable[None]]) -> None:
        """Serve whole streams: `talk` owns each until it returns. At most MAX_STREAMS_PER_PEER of one peer at once."""

        async def accept(stream: Stream) -> None:
            peer = PeerId(str(stream.muxed_conn.peer_id))
            key = (peer, protocol)
            if self._served[key] >= MAX_STREAMS_PER_PEER:
                self._on_fault(peer, f"more than {MAX_STREAMS_PER_PEER} streams on {protocol}")
                await stream.reset()
                return
            self._served[key] += 1
            try:
                await talk(peer, stream)
                await stream.close()
            except WireError as error:
                self._on_fault(peer, str(error))
                await stream.reset()
            finally:
                self._served[key] -= 1
                if not self._served[key]:
                    del self._served[key]

        self._libp2p.set_stream_handler(protocol, accept)

    def _require_gossip(self) -> Gossip:
        if self._gossip is None:
            raise RuntimeError("this host was opened without gossip")
        return self._gossip

    async def _exchange(self, line: _Line, peer: PeerId, protocol: str, frame: bytes, limit: int) -> bytes:
        """One request and its answer; unless all goes well the stream is reset and forgotten."""
        if not line.is_fresh():
            if line.stream is not None:
                self._nursery.start_soon(quietly, line.take().reset)
            line.stream = await self._open(peer, protocol)
        stream = line.take()
        try:
            await unhurried(self._nursery, partial(stream.write, frame))
            answer = await _read_frame(stream, limit)
            if answer is None:
                raise EOFError("closed without an answer")
        except BaseException:
            self._nursery.start_soon(quietly, stream.reset)
            raise
        line.stream, line.used = stream, trio.current_time()
        return answer

    async def _open(self, peer: PeerId, protocol: str) -> Stream:
        if not self.is_connected(peer):
            raise OSError("not connected")
        try:
            return await unhurried(
                self._nursery,
                partial(self._libp2p.new_stream, ID.from_base58(peer), [protocol]),
                lambda stream: stream.reset(),
            )
        except trio.Cancelled:
            # Streams are opened by the library alone: no answer means that the peer is stopped or gone. Only a new
            # connection can tell which, and `connect` makes one only when this one is closed.
            await self.disconnect(peer)
            raise


async def _read_frame(
    stream: Stream, limit: int, idle_seconds: float = float("inf"), frame_seconds: float = float("inf")
) -> bytes | None:
    """The header of the next frame, None when the stream ended before it. Raises WireError, TooSlowError.

    More bytes than one frame are refused: each side waits for the other's frame before it sends its next.
    """
    decoder = FrameDecoder(max_header=limit, max_payload=0)
    with trio.fail_after(idle_seconds) as scope:
        while True:
            try:
                received = await stream.read(READ_BYTES)
            except EOFError:
                received = b""
            if not received:
                break
            frames = decoder.feed(received)
            if len(frames) > 1 or (frames and decoder.pending):
                raise WireError("bytes beyond the one frame that was due")
            if frames:
                return frames[0].header
            scope.deadline = min(scope.deadline, trio.current_time() + frame_seconds)
    if decoder.pending:
        raise WireError("stream cut short")
    return None


def _log_fault(peer: PeerId, reason: str) -> None:
    log.info("refused bytes from %s: %s", peer, reason)


@asynccontextmanager
async def open_control_host(
    identity: Identity, listen: Sequence[str], *, gossip: bool = True, on_fault: OnFault = _log_fault
) -> AsyncIterator[ControlHost]:
    """Listen on TCP multiaddrs ("/ip4/127.0.0.1/tcp/0") until the block is left; all tasks end with it.

    on_fault: told of every peer whose bytes were refused. Raises UsageError, PortInUseError.
    """
    raised: BaseException | None = None
    try:
        async with open_libp2p(identity, listen) as libp2p, AsyncExitStack() as stack:
            gossiper = await stack.enter_async_context(open_gossip(libp2p)) if gossip else None
            async with trio.open_nursery() as nursery:
                try:
                    yield ControlHost(identity, libp2p, nursery, gossiper, on_fault)
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if raised is None or _leaves(group) != [raised]:
            raise
    if raised is not None:  # as the block raised it, not wrapped by the nurseries that happen to be inside
        raise raised


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
