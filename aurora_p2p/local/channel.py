"""Typed messages over a local stream socket: the blocking end (children, trainers) and the trio end (daemons).

Both speak frames of wire/frame.py. A message that does not decode raises WireError; a closed other end is EOFError in
both, so a reader loop ends on one exception.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import trio

from aurora_p2p.errors import UnreachableError, WireError
from aurora_p2p.local.unix import reachable
from aurora_p2p.types import Record
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.frame import PREFIX, Frame, FrameDecoder, encode_frame, frame_lengths

In = TypeVar("In")

READ_SIZE = 1 << 18
READ_AHEAD = 1 << 16
MAX_LOCAL_HEADER = 1 << 28
"""Local processes trust each other's sizes more than the network's: one step's rollouts travel as one message."""
MAX_LOCAL_PAYLOAD = 1 << 26


class Channel(Generic[In]):
    """Blocking end. `send` may be called from several threads; `receive` from one."""

    def __init__(self, sock: socket.socket, kind: type[In]) -> None:
        self._socket, self._kind = sock, kind
        self._send_lock = threading.Lock()
        self._ahead = bytearray()
        """Read and not yet taken: several small messages come with one system call."""

    def send(self, message: Record, payload: bytes | memoryview = b"") -> None:
        self._send(encode_frame(encode(message), payload))

    def send_batch(self, messages: Iterable[Record]) -> None:
        """Several messages without payload, in one write: each write may wake the other process."""
        self._send(b"".join(encode_frame(encode(message)) for message in messages))

    def _send(self, frames: bytes) -> None:
        with self._send_lock:
            try:
                self._socket.sendall(frames)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise EOFError("the other end is gone") from error

    def receive(self) -> tuple[In, bytes]:
        """The next (message, payload). Raises EOFError, WireError, or TimeoutError if the socket has a timeout."""
        header, payload = frame_lengths(
            self._exactly(PREFIX), max_header=MAX_LOCAL_HEADER, max_payload=MAX_LOCAL_PAYLOAD
        )
        body = self._exactly(header)
        return decode(body, self._kind, limit=MAX_LOCAL_HEADER), self._exactly(payload)

    def _exactly(self, count: int) -> bytes:
        while 0 < count - len(self._ahead) <= READ_AHEAD:
            piece = bytearray(READ_AHEAD)
            self._ahead += piece[: self._receive_into(memoryview(piece))]
        buffer = self._ahead[:count]
        del self._ahead[:count]
        done = len(buffer)
        buffer.extend(bytes(count - done))  # nothing, or a large message: straight into its place
        while done < count:
            done += self._receive_into(memoryview(buffer)[done:])
        return bytes(buffer)

    def _receive_into(self, view: memoryview) -> int:
        try:
            got = self._socket.recv_into(view)
        except ConnectionResetError:
            got = 0
        if got == 0:
            raise EOFError("the other end is gone")
        return got

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect_local(path: Path, kind: type[In], *, timeout: float | None = None) -> Channel[In]:
    """Open the blocking end of a Unix socket. Raises UnreachableError when nobody listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with reachable(path) as where:
            sock.connect(where)
    except OSError as error:
        sock.close()
        raise UnreachableError(f"nothing answers at {path}: {error.strerror or error}") from error
    return Channel(sock, kind)


class TrioChannel(Generic[In]):
    """Trio end. One task receives; any task may send."""

    def __init__(self, stream: trio.abc.Stream, kind: type[In]) -> None:
        self._stream, self._kind = stream, kind
        self._decoder = FrameDecoder(max_header=MAX_LOCAL_HEADER, max_payload=MAX_LOCAL_PAYLOAD)
        self._ready: deque[Frame] = deque()
        self._send_lock = trio.Lock()

    async def send(self, message: Record, payload: bytes = b"") -> None:
        """Raises EOFError when the other end is gone."""
        await self._send(encode_frame(encode(message), payload))

    async def send_batch(self, messages: Iterable[Record]) -> None:
        """Several messages without payload, in one write."""
        await self._send(b"".join(encode_frame(encode(message)) for message in messages))

    async def _send(self, frames: bytes) -> None:
        async with self._send_lock:
            try:
                await self._stream.send_all(frames)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise EOFError("the other end is gone") from error

    async def receive(self) -> tuple[In, bytes]:
        """The next (message, payload). Raises EOFError or WireError."""
        while not self._ready:
            try:
                data = await self._stream.receive_some(READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise EOFError("the other end is gone") from error
            if not data:
                raise EOFError("the other end is gone") if not self._decoder.pending else WireError("stream cut short")
            self._ready.extend(self._decoder.feed(data))
        frame = self._ready.popleft()
        return decode(frame.header, self._kind, limit=MAX_LOCAL_HEADER), frame.payload

    async def aclose(self) -> None:
        await self._stream.aclose()
