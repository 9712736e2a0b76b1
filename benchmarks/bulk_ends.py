"""The two ends of one transfer of benchmarks.bulk, each a process: `python -m benchmarks.bulk_ends WAY END CONFIG`.

    WAY   ours       a trio process with a bulk child at each end, store to store, no exchange machine
          exchange   the whole driver at each end: the exchange machine asks, pushes and announces as well
          plain_tls  one thread and one blocking TLS socket at each end (AES-GCM, recv_into), memory to memory
          libp2p     one stream over Noise and Yamux, as the control plane opens it, memory to memory
    END   send, receive; CONFIG is JSON: folder, bytes, segment_bytes, address (of the sender's end, for the receiver)

Lines of JSON on stdout: {"address"} once it listens (send); {"began"} or {"ended"}: CLOCK_MONOTONIC seconds, beside
`cpu`, the CPU seconds that this end has used for the transfer, with all its processes, and `late`, the ticks' lags.
The sender counts until its stdin ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import trio

from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.child import Limits
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.drive import open_exchange
from aurora_p2p.net.keeper import Keeper
from aurora_p2p.net.plane import DataPlane
from aurora_p2p.net.tls import ALPN, Tls
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.roster import open_roster
from aurora_p2p.types import NO_BASE, Epoch, Generation, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire import bulk
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.exchange import SegmentData
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trust import Member, PeerRecord, Roster

SENDER, RECEIVER, PUBLISHER, ADMIT = (Identity(hashlib.sha256(bytes([n])).digest()) for n in range(4))
SWARM = SwarmId(str(PUBLISHER.peer))
WINDOW = 16
"""Segments with the sockets' process at a time: what a machine may ask of one peer keeps it as busy."""
TICK_SECONDS = 0.01
BLOCK_BYTES = 1 << 18
PROTOCOL = "/aurora-bench/1"


class Config(msgspec.Struct, frozen=True):
    folder: str
    bytes: int
    segment_bytes: int
    address: str = ""


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


@dataclass
class Meter:
    """CPU seconds of this process and its children since `begin`, and how late a trio loop's ticks were."""

    cpu: float = 0.0
    late: list[float] | None = None

    def begin(self) -> float:
        self.cpu, self.late = used_cpu(), []
        return time.monotonic()

    def report(self, **times: float) -> None:
        say(**times, cpu=used_cpu() - self.cpu, late=self.late or [])

    async def tick(self) -> None:
        """Run for ever; lags count from `begin` on."""
        while True:
            due = time.monotonic() + TICK_SECONDS
            await trio.sleep(TICK_SECONDS)
            if self.late is not None:
                self.late.append(max(time.monotonic() - due, 0.0))


def used_cpu() -> float:
    """User and system seconds of this process and the children that live."""
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def until_stdin_ends() -> None:
    await trio.to_thread.run_sync(sys.stdin.buffer.read)


# ---- ours


def header(config: Config) -> Signed:
    made = Header(
        format=1,
        swarm=SWARM,
        run=RunId(bytes(16)),
        version=Version(1),
        seq=Seq(1),
        nonce=bytes(16),
        kind="snapshot",
        base_version=NO_BASE,
        base_manifest=b"",
        base_digest=b"",
        layout=bytes(32),
        segment_bytes=config.segment_bytes,
        size_bound=config.bytes + config.segment_bytes,
        class_map=b"",
        tensors=(),
        model=None,
    )
    return seal(PUBLISHER, made)


def publish(config: Config, store: ArtifactStore) -> Manifest:
    """Fill the sender's store."""
    writer = ArtifactWriter(decode(header(config).body, Header), PUBLISHER, store)
    block = os.urandom(1 << 24)
    for start in range(0, config.bytes, len(block)):
        writer.add(block[: config.bytes - start])
    writer.finish(StateDigest(bytes(32)), now=boottime())
    return writer.manifest


@asynccontextmanager
async def open_plane(me: Identity, folder: Path, arrived: Callable[[bulk.BulkEvent], Any]) -> AsyncIterator[DataPlane]:
    (folder / "spool").mkdir(parents=True)
    start = bulk.BulkStart(me.seed, SWARM, "127.0.0.1", 0, 0, 0, str(folder / "spool"))
    plane = DataPlane(start, None, Limits())

    async def take(event: bulk.BulkEvent) -> None:
        arrived(event)
        await trio.lowlevel.checkpoint()
        await plane.commands.room()

    def begun() -> None:
        plane.commands.put(bulk.SetMembers((SENDER.peer, RECEIVER.peer)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(plane.run, take, begun, lambda: sys.exit("a bulk child died"))
        await plane.listening.wait()
        yield plane
        nursery.cancel_scope.cancel()


async def send_ours(config: Config) -> None:
    folder, meter = Path(config.folder) / "send", Meter()
    with ArtifactStore(folder / "artifacts", 2 * config.bytes + (1 << 24)) as store:
        manifest = publish(config, store)
        waiting = iter(range(-(-config.bytes // config.segment_bytes)))

        def send_next() -> None:
            index = next(waiting, None)
            if index is not None:
                plane.commands.put(command_for(config, store, manifest, index))

        def arrived(event: bulk.BulkEvent) -> None:
            match event:
                case bulk.LinkOpened():
                    say(began=meter.begin())
                    for _ in range(WINDOW):
                        send_next()
                case bulk.SegmentSent():
                    send_next()
                case bulk.SegmentFailed():
                    sys.exit("a segment was not sent")

        async with open_plane(SENDER, folder, arrived) as plane, trio.open_nursery() as nursery:
            say(address=f"127.0.0.1:{plane.start.listen_port}")
            nursery.start_soon(meter.tick)
            await until_stdin_ends()
            meter.report()
            nursery.cancel_scope.cancel()


def command_for(config: Config, store: ArtifactStore, manifest: Manifest, index: int) -> bulk.SendFile:
    expected, length = manifest.expected(index), manifest.length_of(index)
    assert expected is not None
    assert length is not None
    frame = encode(SegmentData(manifest.artifact, index, "", b""))
    path, offset = str(store.body_path(manifest.artifact)), index * config.segment_bytes
    return bulk.SendFile(RECEIVER.peer, frame, manifest.artifact, index, path, offset, length, expected)


async def receive_ours(config: Config) -> None:
    folder, meter = Path(config.folder) / "receive", Meter()
    missing, done = set(range(-(-config.bytes // config.segment_bytes))), trio.Event()
    with ArtifactStore(folder / "artifacts", 2 * config.bytes + (1 << 24)) as store:
        signed = header(config)
        artifact = store.create(signed)
        page = seal(PUBLISHER, decode(signed.body, Header))  # any signed value: it is kept once

        def stored(outcome: Any) -> None:
            missing.discard(outcome.index)
            if not missing:
                done.set()

        def arrived(event: bulk.BulkEvent) -> None:
            match event:
                case bulk.LinkOpened():
                    meter.begin()
                case bulk.SegmentArrived(_, frame, path):
                    keeper.jobs.put(ev.Keep(artifact, decode(frame, SegmentData).index, path, page))

        keeper = Keeper(store, stored, lambda tokens: plane.commands.put(bulk.FreeSpool(tuple(tokens))))
        async with open_plane(RECEIVER, folder, arrived) as plane, trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            nursery.start_soon(meter.tick)
            plane.commands.put(bulk.DialPeer(SENDER.peer, config.address))
            await done.wait()
            meter.report(ended=time.monotonic())
            nursery.cancel_scope.cancel()


# ---- the whole driver


@asynccontextmanager
async def open_driver(me: Identity, folder: Path, store: ArtifactStore) -> AsyncIterator[Any]:
    async with open_exchange(
        identity=me, swarm=SWARM, store=store, spool=folder / "spool", listen="127.0.0.1:0", local=("127.0.0.0/8",)
    ) as driver:
        await driver.feed(ev.TrustChanged(PUBLISHER.peer, frozenset({SENDER.peer}), generation=1))
        yield driver


async def introduce(driver: Any, sender_address: str) -> None:
    records = [(SENDER, (sender_address,)), (RECEIVER, ())]
    members = [Member(seal(me, PeerRecord(SWARM, me.peer, 1, (), at, up_kbps=0)), 0, False) for me, at in records]
    roster = seal(ADMIT, Roster(SWARM, Generation(1), Epoch(1), tuple(members)))
    await driver.feed(ev.RosterChanged(open_roster(roster, swarm=SWARM, admit=ADMIT.peer)))


async def send_exchange(config: Config) -> None:
    folder, meter = Path(config.folder) / "send", Meter()
    with ArtifactStore(folder / "artifacts", 2 * config.bytes + (1 << 24)) as store:
        manifest = publish(config, store)
        async with open_driver(SENDER, folder, store) as driver, trio.open_nursery() as nursery:
            await driver.feed(ev.Restored(manifest, range(-(-config.bytes // config.segment_bytes)), origin=True))
            address = f"127.0.0.1:{driver.port}"
            await introduce(driver, address)
            say(address=address)
            nursery.start_soon(meter.tick)
            while not driver.linked:
                await trio.sleep(TICK_SECONDS)
            say(began=meter.begin())
            await until_stdin_ends()
            meter.report()
            nursery.cancel_scope.cancel()


async def receive_exchange(config: Config) -> None:
    folder, meter = Path(config.folder) / "receive", Meter()
    with ArtifactStore(folder / "artifacts", 2 * config.bytes + (1 << 24)) as store:
        async with open_driver(RECEIVER, folder, store) as driver, trio.open_nursery() as nursery:
            nursery.start_soon(meter.tick)
            await introduce(driver, config.address)
            async for notice in driver.notices:
                match notice:
                    case ev.Announced(manifest):
                        store.create(manifest.signed_header)
                        meter.begin()
                        await driver.feed(ev.Accept(manifest.artifact))
                    case ev.Completed():
                        meter.report(ended=time.monotonic())
                        nursery.cancel_scope.cancel()
                        break


# ---- rivals


def send_plain_tls(config: Config) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    say(address=f"127.0.0.1:{listener.getsockname()[1]}")
    context = Tls.create(SENDER, SWARM).server
    with context.wrap_socket(listener.accept()[0], server_side=True) as secure:
        meter, block = Meter(), os.urandom(BLOCK_BYTES)
        say(began=meter.begin())
        sender = threading.Thread(target=lambda: [secure.sendall(block) for _ in range(config.bytes // BLOCK_BYTES)])
        sender.start()
        sender.join()
        sys.stdin.buffer.read()
        meter.report()


def receive_plain_tls(config: Config) -> None:
    host, _, port = config.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    with context.wrap_socket(socket.create_connection((host, int(port)))) as secure:
        meter, buffer = Meter(), memoryview(bytearray(BLOCK_BYTES))
        meter.begin()

        def receive() -> None:
            left = config.bytes
            while left:
                left -= secure.recv_into(buffer[: min(left, BLOCK_BYTES)])

        receiver = threading.Thread(target=receive)
        receiver.start()
        receiver.join()
        meter.report(ended=time.monotonic())


async def send_libp2p(config: Config) -> None:
    from aurora_p2p.net.stack import open_libp2p

    meter, block = Meter(), os.urandom(BLOCK_BYTES)

    async def serve(stream: Any) -> None:
        await stream.read(1)
        say(began=meter.begin())
        for _ in range(config.bytes // BLOCK_BYTES):
            await stream.write(block)

    async with open_libp2p(SENDER, ["/ip4/127.0.0.1/tcp/0"]) as host:
        host.set_stream_handler(PROTOCOL, serve)
        say(address=str(host.get_addrs()[0]))
        await until_stdin_ends()
        meter.report()


async def receive_libp2p(config: Config) -> None:
    from libp2p.peer.id import ID

    from aurora_p2p.net.stack import dial, open_libp2p, parse_target

    meter = Meter()
    async with open_libp2p(RECEIVER, ["/ip4/127.0.0.1/tcp/0"]) as host:
        peer, target = parse_target(config.address)
        await dial(host, peer, target, seconds=20)
        stream: Any = await host.new_stream(ID.from_base58(peer), [PROTOCOL])
        meter.begin()
        await stream.write(b"?")
        left = config.bytes
        while left:
            left -= len(await stream.read(min(left, BLOCK_BYTES)))
        meter.report(ended=time.monotonic())


ENDS: dict[tuple[str, str], Callable[[Config], Any]] = {
    ("ours", "send"): partial(trio.run, send_ours),
    ("ours", "receive"): partial(trio.run, receive_ours),
    ("exchange", "send"): partial(trio.run, send_exchange),
    ("exchange", "receive"): partial(trio.run, receive_exchange),
    ("plain_tls", "send"): send_plain_tls,
    ("plain_tls", "receive"): receive_plain_tls,
    ("libp2p", "send"): partial(trio.run, send_libp2p),
    ("libp2p", "receive"): partial(trio.run, receive_libp2p),
}


def main() -> None:
    way, end, config = sys.argv[1:]
    ENDS[way, end](msgspec.json.decode(config, type=Config))
    os._exit(0)  # libp2p leaves tasks behind


if __name__ == "__main__":
    main()
