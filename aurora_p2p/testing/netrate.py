"""What a line of a laboratory (netlab.py) carries: the payload of one plain TCP connection, against the nominal rate.

Headers take a share of every line (Ethernet, IP, TCP: payload is about 0.956 of the nominal rate), and the hub's
counters see the kernel's large packets. Bounds and copies are computed with what is measured here, not with constants.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from aurora_p2p.testing.netlab import Lab, LabNode

WARM_SECONDS = 0.5
"""Of payload that is not counted: slow start, and the bucket's first burst."""
LIMIT_SECONDS = 30.0
PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Calibration:
    """payload_ratio: payload bits per nominal bit. wire_ratio: bytes counted at the hub per byte of payload."""

    payload_ratio: float
    wire_ratio: float


def calibrate(lab: Lab, source: int, target: int, mbit: float, clock: Callable[[], float]) -> Calibration:
    """Send 2 s of plain TCP from one node to another. mbit: the nominal rate of the narrowest line on the way."""
    second = int(mbit * 1e6 / 8)
    warm, counted = int(second * WARM_SECONDS), 2 * second
    before = lab.counts()[source].up
    seconds = transfer(lab.nodes[source], lab.nodes[target], warm, counted, clock)
    wire = lab.counts()[source].up - before
    return Calibration(counted / seconds / second, wire / (warm + counted))


def transfer(source: LabNode, target: LabNode, warm: int, counted: int, clock: Callable[[], float]) -> float:
    """Seconds in which `counted` bytes arrive, after the first `warm`. Raises TimeoutError or OSError."""
    with source.socket() as sender, target.socket() as listener:
        listener.settimeout(LIMIT_SECONDS)
        listener.bind((target.address, 0))
        listener.listen(1)
        sender.settimeout(LIMIT_SECONDS)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            receiver.settimeout(LIMIT_SECONDS)
            pump = threading.Thread(target=_send, args=(sender, warm + counted))
            pump.start()
            try:
                _receive(receiver, warm)
                began = clock()
                _receive(receiver, counted)
                return clock() - began
            finally:
                with contextlib.suppress(OSError):
                    sender.shutdown(socket.SHUT_RDWR)
                pump.join()


def _send(sender: socket.socket, size: int) -> None:
    piece = memoryview(bytes(PIECE))
    with contextlib.suppress(OSError):  # the receiver tells what is missing
        while size > 0:
            size -= sender.send(piece[:size])


def _receive(receiver: socket.socket, size: int) -> None:
    buffer = bytearray(PIECE)
    while size > 0:
        count = receiver.recv_into(buffer, min(size, PIECE))
        if count == 0:
            raise OSError("the connection ended too soon")
        size -= count
