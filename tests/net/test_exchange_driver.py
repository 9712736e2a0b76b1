"""Drivers with real bulk children, real stores and the real machine: artifacts travel from a host to nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from blake3 import blake3

from aurora_p2p.artifact.manifest import Manifest, PageWriter
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import PortInUseError, UsageError
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.drive import ExchangeDriver, open_exchange
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.roster import open_roster
from aurora_p2p.types import NO_BASE, ArtifactId, Epoch, Generation, RunId, Seq, StateDigest, Version
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trust import Abort, Member, PeerRecord, Roster
from tests.net.bulk_child import SWARM, identity

pytestmark = pytest.mark.slow

SEGMENT = 2048
PUBLISHER, ADMIT = identity(100), identity(101)


@dataclass
class Party:
    """A host or node: its driver, its store, and what its driver has told it."""

    me: Identity
    driver: ExchangeDriver
    store: ArtifactStore
    notices: list[object]

    async def follow(self, completed: trio.MemorySendChannel[ArtifactId]) -> None:
        """Accept whatever is announced, report what completes."""
        async for notice in self.driver.notices:
            self.notices.append(notice)
            match notice:
                case ev.Announced(manifest):
                    await trio.to_thread.run_sync(self.store.create, manifest.signed_header)
                    await self.driver.feed(ev.Accept(manifest.artifact))
                case ev.Completed(artifact) | ev.AbortSeen(artifact):
                    await completed.send(artifact)


@asynccontextmanager
async def party(number: int, folder: Path, *, rate: int = 0) -> AsyncIterator[Party]:
    me = identity(number)
    home = folder / str(number)
    with ArtifactStore(home / "artifacts", 1 << 28) as store:
        async with open_exchange(
            identity=me,
            swarm=SWARM,
            store=store,
            spool=home / "spool",
            listen="127.0.0.1:0",
            up_rate=rate,
            down_rate=rate,
            local=("127.0.0.0/8",),
            log=folder / f"{number}.log",
        ) as driver:
            yield Party(me, driver, store, [])


async def introduce(parties: Sequence[Party], epoch: int = 1) -> None:
    """Give everybody the same trust and roster; the first is the host."""
    records = [PeerRecord(SWARM, one.me.peer, 1, (), (f"127.0.0.1:{one.driver.port}",), up_kbps=0) for one in parties]
    members = tuple(Member(seal(one.me, record), 0, False) for one, record in zip(parties, records, strict=True))
    roster = seal(ADMIT, Roster(SWARM, Generation(1), Epoch(epoch), members))
    view = open_roster(roster, swarm=SWARM, admit=ADMIT.peer)
    for one in parties:
        hosts = frozenset({parties[0].me.peer})
        await one.driver.feed(ev.TrustChanged(PUBLISHER.peer, hosts, generation=1))
        await one.driver.feed(ev.RosterChanged(view))


def header(seq: int, bound: int) -> Header:
    return Header(
        format=1,
        swarm=SWARM,
        run=RunId(bytes(16)),
        version=Version(seq),
        seq=Seq(seq),
        nonce=os.urandom(16),
        kind="snapshot",
        base_version=NO_BASE,
        base_manifest=b"",
        base_digest=b"",
        layout=bytes(32),
        segment_bytes=SEGMENT,
        size_bound=bound,
        class_map=b"",
        tensors=(),
        model=None,
    )


async def publish(host: Party, body: bytes, seq: int = 1, *, finish: bool = True) -> Manifest:
    """Publish in pieces of 8 segments, cut-through."""
    signed = seal(PUBLISHER, header(seq, 2 * len(body)))
    manifest, pages = Manifest(signed, PUBLISHER.peer), PageWriter(PUBLISHER, signed)
    await trio.to_thread.run_sync(host.store.create, signed)
    await host.driver.feed(ev.Publish(manifest))
    segments = [body[start : start + SEGMENT] for start in range(0, len(body), SEGMENT)]
    for first in range(0, len(segments), 8):
        piece = segments[first : first + 8]
        host.store.append(manifest.artifact, b"".join(piece))
        for segment in piece:
            pages.add(blake3(segment).digest())
        for page in pages.flush():
            manifest.add_page(page)
            host.store.save_page(manifest.artifact, page)
        last = len(piece[-1]) if first + 8 >= len(segments) else None
        await host.driver.feed(ev.Produced(manifest.artifact, range(first, first + len(piece)), last))
    if finish:
        manifest.add_final(pages.finish(len(body), StateDigest(bytes(32))))
        assert manifest.signed_final is not None
        host.store.save_final(manifest.artifact, manifest.signed_final)
        host.store.finish(manifest.artifact, now=boottime())
        await host.driver.feed(ev.Finished(manifest.artifact))
    return manifest


@dataclass
class Swarm:
    parties: list[Party]
    done: trio.MemoryReceiveChannel[ArtifactId]

    @property
    def host(self) -> Party:
        return self.parties[0]

    @property
    def nodes(self) -> list[Party]:
        return self.parties[1:]

    async def everyone_done(self) -> None:
        """Every node has completed (or dropped) the artifact."""
        for _ in self.nodes:
            with trio.fail_after(60):
                await self.done.receive()


@asynccontextmanager
async def swarm(folder: Path, count: int, *, rate: int = 0) -> AsyncIterator[Swarm]:
    send, done = trio.open_memory_channel[ArtifactId](64)
    async with AsyncExitStack() as stack:
        parties = [await stack.enter_async_context(party(number, folder, rate=rate)) for number in range(1, count + 1)]
        nursery = await stack.enter_async_context(trio.open_nursery())
        await introduce(parties)
        for node in parties[1:]:
            nursery.start_soon(node.follow, send)
        yield Swarm(parties, done)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, leaving the processor to the children meanwhile."""
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.01)


def test_an_artifact_reaches_every_node_exactly_and_nodes_serve_each_other(tmp_path: Path) -> None:
    body = os.urandom(64 * SEGMENT + 777)

    async def main() -> None:
        async with swarm(tmp_path, 4, rate=400_000) as four:
            await until(lambda: all(len(one.driver.linked) == 3 for one in four.parties))
            manifest = await publish(four.host, body)
            await four.everyone_done()
            for node in four.nodes:
                assert node.store.is_complete(manifest.artifact)
                assert node.store.body_path(manifest.artifact).read_bytes() == body
            statuses = [one.driver.status() for one in four.parties]
            copies = statuses[0]["published"]["sent_bytes"] / statuses[0]["published"]["artifact_bytes"]
            assert copies <= 1.5
            for status in statuses[1:]:
                assert status["segments"]["sent"] > 0
                assert status["segments"]["origin"] + status["segments"]["peers"] == 65
                assert status["artifacts"][0]["have"] == 65
                assert status["refused"] == {}

    trio.run(main)


def test_a_node_survives_the_death_of_its_bulk_child(tmp_path: Path) -> None:
    async def main() -> None:
        async with swarm(tmp_path, 2) as two:
            first = await publish(two.host, os.urandom(4 * SEGMENT))
            await two.everyone_done()
            os.kill(two.nodes[0].driver.status()["bulk_pid"], signal.SIGKILL)
            second = await publish(two.host, os.urandom(4 * SEGMENT), seq=2)
            await two.everyone_done()
            node = two.nodes[0]
            assert node.store.is_complete(first.artifact)
            assert node.store.is_complete(second.artifact)
            assert [one.driver.status()["restarts"] for one in two.parties] == [0, 1]

    trio.run(main)


def test_a_late_joiner_catches_up_and_an_abort_removes_what_was_begun(tmp_path: Path) -> None:
    body = os.urandom(20 * SEGMENT)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            two = await stack.enter_async_context(swarm(tmp_path, 2))
            manifest = await publish(two.host, body)
            await two.everyone_done()
            late = await stack.enter_async_context(party(9, tmp_path))
            nursery = await stack.enter_async_context(trio.open_nursery())
            send, done = trio.open_memory_channel[ArtifactId](8)
            nursery.start_soon(late.follow, send)
            await introduce([*two.parties, late], epoch=2)
            with trio.fail_after(60):
                assert await done.receive() == manifest.artifact
            assert late.store.body_path(manifest.artifact).read_bytes() == body
            broken = await publish(two.host, body[: 8 * SEGMENT], seq=2, finish=False)
            await two.host.driver.feed(ev.Aborted(seal(PUBLISHER, Abort(SWARM, Seq(2), broken.artifact))))
            with trio.fail_after(60):
                assert await two.done.receive() == broken.artifact
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_full_disk_pauses_fetching_and_the_artifact_completes_later(tmp_path: Path) -> None:
    body = os.urandom(16 * SEGMENT)

    async def main() -> None:
        async with swarm(tmp_path, 2) as two:
            node = two.nodes[0]
            spool = tmp_path / "2" / "spool"
            spool.rename(tmp_path / "2" / "elsewhere")
            manifest = await publish(two.host, body)
            await until(lambda: node.driver.status()["disk_paused"])
            (tmp_path / "2" / "elsewhere").rename(spool)
            await two.everyone_done()
            assert node.store.body_path(manifest.artifact).read_bytes() == body
            await until(lambda: not node.driver.status()["disk_paused"])

    trio.run(main)


def test_caps_can_be_changed_and_nonsense_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with party(1, tmp_path) as one:
            assert await one.driver.change_caps(100, None) == {"up_kib": 100.0, "down_kib": 0.0}
            assert one.driver.status()["up_kib"] == 100.0
            for nonsense in ("fast", -1, True, 2**50):
                with pytest.raises(UsageError):
                    await one.driver.change_caps(nonsense)

    trio.run(main)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with party(1, tmp_path) as one:
            with pytest.raises(ExceptionGroup) as caught, ArtifactStore(tmp_path / "x", 1) as store:
                async with open_exchange(
                    identity=identity(2),
                    swarm=SWARM,
                    store=store,
                    spool=tmp_path / "spool",
                    listen=f"127.0.0.1:{one.driver.port}",
                ):
                    raise AssertionError("it must not open")
            assert caught.group_contains(PortInUseError)

    trio.run(main)
