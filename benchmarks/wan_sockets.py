"""Plain TCP over an emulated long path: what the path gives to 1, 4 and 8 connections, with nothing of ours on top.

    transfer(wan, streams=8, size=48 << 20)        starts both programs, one at each end of the path

    python -m benchmarks.wan_sockets receive ADDRESS PORT --streams 8 --bytes 50331648 [--warm]
    python -m benchmarks.wan_sockets send ADDRESS PORT --streams 8 --bytes 50331648 [--warm]

The sender hands 256 KiB pieces, each with its number, to whichever connection takes one; the receiver puts them
together, and prints when the last byte had arrived and the BLAKE3 of the whole. --warm sends as much twice on the same
connections, PAUSE_SECONDS apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from aurora_p2p.testing.wan import Wan

PIECE = 256 * 1024
HEAD = struct.Struct("<II")
"""Number and length of a piece."""
UNSENT_BYTES = 128 * 1024
"""TCP_NOTSENT_LOWAT: a connection takes no piece that it cannot send soon; half of one keeps it busy."""
CONNECT_SECONDS = 10.0
TRANSFER_SECONDS = 170.0
PORT = 4000
BACKLOG = 16
ROOT = Path(__file__).resolve().parent.parent
PAUSE_SECONDS = 1.0
"""Between a warm-up and the transfer: more than a retransmission timeout of 0.3 s, less than any keep-alive."""


@dataclass(frozen=True, slots=True)
class Passage:
    """seconds: of each round, from the first byte handed to a socket to the last one taken out of one."""

    seconds: tuple[float, ...]
    sent_digest: str
    received_digest: str


def transfer(wan: Wan, *, streams: int, size: int, warm: bool = False) -> Passage:
    """From end 0 of a path to end 1. Raises CalledProcessError or TimeoutExpired when a program fails."""
    last = [wan.nodes[1].address, str(PORT), "--streams", str(streams), "--bytes", str(size), *["--warm"][: int(warm)]]
    words = [sys.executable, "-m", "benchmarks.wan_sockets"]
    receiver = subprocess.Popen(
        wan.nodes[1].command([*words, "receive", *last]), stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with receiver:
        try:
            assert receiver.stdout
            receiver.stdout.readline()  # it listens
            send = wan.nodes[0].command([*words, "send", *last])
            sent = json.loads(subprocess.run(send, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)
            came = json.loads(receiver.communicate(timeout=TRANSFER_SECONDS)[0])
        finally:
            receiver.kill()
    seconds = tuple(end - begin for begin, end in zip(sent["began"], came["ended"], strict=True))
    return Passage(seconds, sent["digest"], came["digest"])


def body_of(size: int) -> bytes:
    return random.Random(1).randbytes(size)


def send(address: str, port: int, streams: int, size: int, rounds: int) -> dict[str, Any]:
    """Returns when each round began (CLOCK_MONOTONIC) and the hash of the body."""
    body = body_of(size)
    links = [connect(address, port) for _ in range(streams)]
    began = []
    for number in range(rounds):
        if number:
            answer = links[0].recv(1)  # the receiver has everything
            assert answer
            time.sleep(PAUSE_SECONDS)
        began.append(time.monotonic())
        pieces = iter(range(0, len(body), PIECE))
        threads = [threading.Thread(target=feed, args=(link, body, pieces)) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for link in links:
        link.shutdown(socket.SHUT_WR)
        while link.recv(1):
            pass
        link.close()
    return {"began": began, "digest": blake3(body).hexdigest()}


def connect(address: str, port: int) -> socket.socket:
    link = socket.create_connection((address, port), CONNECT_SECONDS)
    link.settimeout(TRANSFER_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return link


def feed(link: socket.socket, body: bytes, pieces: Iterator[int]) -> None:
    """Send pieces until none is left. `next` of a range is one step, so threads share the iterator."""
    view = memoryview(body)
    for start in pieces:
        piece = view[start : start + PIECE]
        link.sendall(HEAD.pack(start, len(piece)))
        link.sendall(piece)


def receive(address: str, port: int, streams: int, size: int, rounds: int) -> dict[str, Any]:
    """Take so many connections and rounds. Returns when each round's last byte came, and the hash of the last body."""
    body = bytearray(size)
    pieces = -(-size // PIECE)
    ended: list[float] = []
    count = itertools.count(1)
    links: list[socket.socket] = []

    def take(link: socket.socket) -> None:
        head = bytearray(HEAD.size)
        while fill(link, memoryview(head)):
            start, length = HEAD.unpack(head)
            fill(link, memoryview(body)[start : start + length])
            if next(count) % pieces == 0:
                ended.append(time.monotonic())
                if len(ended) < rounds:
                    links[0].sendall(b".")
        link.close()

    with socket.create_server((address, port), backlog=BACKLOG) as listener:
        print("listening", flush=True)
        for _ in range(streams):
            link, _ = listener.accept()
            link.settimeout(TRANSFER_SECONDS)
            links.append(link)
    threads = [threading.Thread(target=take, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"ended": ended, "digest": blake3(body).hexdigest()}


def fill(link: socket.socket, view: memoryview) -> bool:
    """Whether the view could be filled before the end of the stream."""
    while view:
        got = link.recv_into(view)
        if not got:
            return False
        view = view[got:]
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wan_sockets", description=__doc__)
    parser.add_argument("role", choices=("send", "receive"))
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=48 << 20)
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    act = send if options.role == "send" else receive
    rounds = 2 if options.warm else 1
    print(json.dumps(act(options.address, options.port, options.streams, options.bytes, rounds)))


if __name__ == "__main__":
    main()
