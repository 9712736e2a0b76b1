"""Rebuilding the host's snapshot: a real store, fold child and exchange machine, and a host that answers it."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing
from msgspec import structs

from aurora_node import rebuilds as module
from aurora_node.known import Known
from aurora_node.presence import Stance
from aurora_node.rebuilds import Rebuilds
from aurora_p2p.artifact.rebuilding import SEEDERS, TURN_SECONDS, turn_of
from aurora_p2p.artifact.retention import restart_route
from aurora_p2p.artifact.routes import WriteBudget
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter
from aurora_p2p.delta.encode import encode_snapshot
from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import Armed, DiskRule, Plan
from aurora_p2p.net.keeper import DiskRefused, Keeper
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange, ExchangeConfig
from aurora_p2p.types import PeerId
from aurora_p2p.wire.codec import encode, hash_of
from aurora_p2p.wire.exchange import Offer, RequestSegments, SegmentData
from aurora_p2p.wire.limits import MAX_PAGE_HASHES
from aurora_p2p.wire.manifest import TensorEntry
from tests.artifact.conftest import SEGMENT
from tests.host.world import NODES
from tests.node.test_folds import ME, SPECS, Node

pytestmark = pytest.mark.slow

HOST = NODES[1].peer
OTHERS = [PeerId(f"peer{number}") for number in range(7)]


class Swarm:
    """The exchange of one node, and the host at the other end of its only link."""

    def __init__(self, node, folder):
        self.node, self.folder, self.served, self.asked = node, folder, None, []
        self.body, self.silent, self.others = b"", False, {}
        swarm = node.publisher.header(0).swarm
        self.machine = Exchange(ExchangeConfig(swarm), ME.peer, Random(1))
        self.machine.handle(ev.TrustChanged(node.publisher.key.peer, frozenset({HOST})), now=boottime())
        self.machine.handle(ev.LinkUp(HOST), now=boottime())
        folder.mkdir()

    async def feed(self, event):
        await trio.lowlevel.checkpoint()
        self._carry_out(self.machine.handle(event, now=boottime()))
        self._carry_out(self.machine.expire(now=boottime()))

    def holders(self, artifact):
        return {**self.machine.holders(artifact), **self.others}

    def reach_of(self, artifact):
        return self.machine.reach_of(artifact)

    def offer(self, page_segments=MAX_PAGE_HASHES, seq=None):
        """The host publishes aside a snapshot of the newest version; returns what the node knows of it.

        page_segments: of each page; negative: so many short of all of them.
        """
        encoder, newest = encode_snapshot(SPECS, self.node.states[-1]), self.node.newest.header
        header = structs.replace(
            self.node.publisher.header(newest.version, kind="snapshot", seq=seq or newest.seq + 1000),
            layout=layout_id(SPECS),
            tensors=tuple(TensorEntry(spec, "full") for spec in SPECS),
        )
        body = b"".join(encoder)
        if page_segments < 0:
            page_segments += -(-len(body) // SEGMENT)
        with ArtifactStore(self.folder / f"host-{header.seq}", 1 << 25) as store:
            writer = ArtifactWriter(header, self.node.publisher.key, store, page_segments=page_segments)
            for at in range(0, len(body), SEGMENT):
                writer.add(body[at : at + SEGMENT])
            writer.finish(encoder.digest, now=0.0)
        self.served, self.body = writer.manifest, body
        effects = self.machine.handle(
            ev.FrameIn(HOST, Offer(writer.manifest.signed_header, writer.manifest.signed_final)), now=boottime()
        )
        [announced] = [effect for effect in effects if isinstance(effect, ev.Announced)]
        return Known(announced.manifest, boottime())

    def _carry_out(self, effects):
        keeper = Keeper(self.node.store, self._done)
        for effect in effects:
            match effect:
                case ev.SendFrame(_, RequestSegments(_, _, indices)) if not self.silent:
                    for index in indices:
                        self._carry_out(self.machine.handle(self._segment(index), now=boottime()))
                case ev.Keep() | ev.Discard():
                    for outcome in keeper._do(effect):
                        self._done(outcome)
                case ev.Completed():
                    keeper._finish(self.machine._catalog.artifacts[effect.artifact].manifest)

    def _done(self, outcome):
        """As net/drive.py: a disk that refuses pauses the fetching."""
        told = [ev.PauseFetch(True)] if isinstance(outcome, ev.StoreFailed) else []
        for event in [*told, *([] if isinstance(outcome, DiskRefused) else [outcome])]:
            self._carry_out(self.machine.handle(event, now=boottime()))

    def _segment(self, index):
        self.asked.append(index)
        size = self.served.header.segment_bytes
        payload = self.body[index * size : (index + 1) * size]
        token = self.folder / f"segment-{index}"
        token.write_bytes(payload)
        frame = SegmentData(self.served.artifact, index, "", encode(self.served.page_of(index)))
        return ev.SegmentIn(HOST, frame, str(token), len(payload), hash_of(payload))


class World:
    def __init__(self, tmp_path, store, **options):
        self.node = Node(store, **options)
        self.swarm = Swarm(self.node, tmp_path / "swarm")
        self.rebuilds = Rebuilds(ME.peer, store, self.swarm, self.node.folds)
        self.known, self.pressed, self.members = None, False, [ME.peer]
        self.rebuilds.newest = lambda: self.known
        self.rebuilds.members = lambda: self.members
        self.rebuilds.pressed = lambda: self.pressed
        self.rebuilds.note = lambda name, **fields: self.node.notes.append((name, fields))

    @property
    def store(self):
        return self.node.store

    def has_it(self):
        return self.store.is_complete(self.known.manifest.artifact)

    def told(self):
        return [name for name, _ in self.node.notes]


def rebuild(tmp_path, use, *, quota_bytes=1 << 25, **options):
    async def main():
        with ArtifactStore(tmp_path / "artifacts", quota_bytes) as store:
            await use(World(tmp_path, store, **options))

    trio.run(main)


def test_a_node_makes_the_published_bytes_again_and_fetches_one_segment_of_each_page(tmp_path):
    async def use(world):
        world.node.receive(6)
        world.known = world.swarm.offer()
        await world.rebuilds.look()
        assert world.told() == ["rebuilt"]
        assert world.has_it()
        artifact, manifest = world.known.manifest.artifact, world.known.manifest
        assert world.store.body_path(artifact).read_bytes() == world.swarm.body
        assert sorted(world.swarm.asked) == list(range(0, manifest.final.segments, MAX_PAGE_HASHES))
        assert len(world.swarm.asked) < manifest.final.segments
        assert world.swarm.machine.have(artifact) == (1 << manifest.final.segments) - 1, "and it serves all of it"
        assert world.rebuilds.status() == {"rebuilt": 1, "rebuilding": None, "rebuild_failed": ""}
        world.known.begun = world.known.complete = True  # as weights.py notes it
        await world.rebuilds.look()
        assert world.told() == ["rebuilt"]

    rebuild(tmp_path, use)


def test_a_restart_begins_with_what_was_rebuilt_and_lets_go_of_what_it_replaces(tmp_path):
    async def use(world):
        world.node.receive(4)
        world.known = world.swarm.offer()
        await world.rebuilds.look()
        world.node.receive(2)
        assert world.node.restart() == [("snapshot", -1, 3), ("delta", 3, 4), ("delta", 4, 5)]
        assert restart_route(world.store.residents())[0].artifact == world.known.manifest.artifact

    rebuild(tmp_path, use)


def test_it_rebuilds_from_what_it_has_folded_itself(tmp_path):
    async def use(world):
        world.node.receive(40)
        await world.node.folds.look()
        world.node.prune()
        world.node.receive()
        world.node.folds._budget = WriteBudget(1 << 40)
        world.known = world.swarm.offer()
        await world.rebuilds.look()
        assert world.told() == ["folded", "rebuilt"]

    rebuild(tmp_path, use)


def not_begun(world):
    return not world.told() and not world.swarm.asked


def test_it_waits_for_its_turn_and_steps_in_when_the_first_have_not(tmp_path):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        artifact = world.known.manifest.artifact
        world.members = [ME.peer, *OTHERS]
        while turn_of(ME.peer, world.members, artifact) == 0:
            world.members.append(PeerId(f"more{len(world.members)}"))
        await world.rebuilds.look()
        assert not_begun(world)
        world.known.heard -= TURN_SECONDS * turn_of(ME.peer, world.members, artifact)
        world.swarm.others = dict.fromkeys(OTHERS[:SEEDERS], world.known.manifest.final.segments)
        await world.rebuilds.look()
        assert not_begun(world), "enough members hold it"
        world.swarm.others = dict.fromkeys(OTHERS[:SEEDERS], 1)
        await world.rebuilds.look()
        assert world.has_it()

    rebuild(tmp_path, use)


@pytest.mark.parametrize("why", ["paused", "budget", "pressed", "not a member", "begun", "no final page", "no chain"])
def test_nothing_is_written_or_asked_for_when(tmp_path, why):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        match why:
            case "paused":
                world.node.folds.stand(Stance(paused_by="owner"))
            case "budget":
                world.node.folds.wrote(1 << 40)
            case "pressed":
                world.pressed = True
            case "not a member":
                world.members = OTHERS
            case "begun":
                world.known.begun = True
            case "no final page":
                world.known.manifest.final = None
            case "no chain":
                for one in world.store.residents():
                    world.store.retire(one.artifact)
        before = world.store.reserved_bytes
        await world.rebuilds.look()
        assert not_begun(world)
        assert world.store.reserved_bytes == before

    rebuild(tmp_path, use)


def given_up(world, before, why):
    """It is as unknown as before, to the store and to the exchange."""
    assert world.told() == ["rebuild-failed"]
    assert why in world.rebuilds.failed
    assert world.store.reserved_bytes == before
    assert world.swarm.machine.have(world.known.manifest.artifact) == 0
    assert not world.swarm.machine._catalog.artifacts[world.known.manifest.artifact].fetch.wanted


@pytest.mark.parametrize(
    "rule", [DiskRule("write", "*body", hit=0), DiskRule("write", "*pages", hit=0), DiskRule("write", "*body", hit=3)]
)
def test_a_disk_that_refuses_leaves_everything_as_it_was(tmp_path, monkeypatch, rule):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        before = world.store.reserved_bytes
        monkeypatch.setattr(module, "PROBE_SECONDS", 1.0)
        monkeypatch.setattr(faults, "_armed", Armed(Plan((rule,)), ""))
        await world.rebuilds.look()
        monkeypatch.setattr(faults, "_armed", None)
        given_up(world, before, "")
        await world.rebuilds.look()
        assert world.told() == ["rebuild-failed"], "that snapshot is left to others"

    rebuild(tmp_path, use)


def test_bytes_that_another_compressor_made_are_noticed_at_their_first_segment(tmp_path):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        before = world.store.reserved_bytes
        manifest = world.known.manifest
        right = manifest.expected
        manifest.expected = lambda index: bytes(32) if index == 1 else right(index)
        await world.rebuilds.look()
        given_up(world, before, "segment 1 is not as it was published")

    rebuild(tmp_path, use)


def test_a_probe_may_be_the_last_segment_and_complete_the_artifact_before_it_is_made(tmp_path):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer(page_segments=-1)
        await world.rebuilds.look()
        assert world.known.manifest.final.segments - 1 in world.swarm.asked
        assert world.told() == ["rebuilt"]

    rebuild(tmp_path, use)


def test_small_pages_are_too_dear(tmp_path):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer(page_segments=1)
        before = world.store.reserved_bytes
        await world.rebuilds.look()
        given_up(world, before, "its pages are small")

    rebuild(tmp_path, use)


def test_pages_that_do_not_come_are_not_waited_for_for_ever(tmp_path, monkeypatch):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        before, world.swarm.silent = world.store.reserved_bytes, True
        monkeypatch.setattr(module, "PROBE_SECONDS", 0.5)
        await world.rebuilds.look()
        given_up(world, before, "its pages did not come")

    rebuild(tmp_path, use)


@pytest.mark.parametrize("cause", ["newer", "pressed"])
def test_it_gives_way_to_a_newer_snapshot_and_to_weights_that_find_no_room(tmp_path, cause):
    async def use(world):
        world.node.receive(3)
        first = world.known = world.swarm.offer()
        before = world.store.reserved_bytes

        def newest():
            if world.rebuilds.under_way is not None and cause == "newer":
                return Known(world.node.newest, boottime())
            world.pressed = world.rebuilds.under_way is not None
            return first

        world.rebuilds.newest = newest
        await world.rebuilds.look()
        given_up(world, before, "newer")

    rebuild(tmp_path, use)


def test_the_disk_that_the_owner_wants_free_stays_free(tmp_path):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        before = world.store.reserved_bytes
        await world.rebuilds.look()
        given_up(world, before, "no room")

    rebuild(tmp_path, use, floor=1 << 60)


def test_what_rotted_is_never_rebuilt_into_something_that_looks_sound(tmp_path):
    async def use(world):
        world.node.receive(4)
        world.known = world.swarm.offer()
        before = world.store.reserved_bytes
        path = world.store.body_path(next(one.artifact for one in world.store.residents() if one.header.version == 2))
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(body)
        await world.rebuilds.look()
        given_up(world, before, "")

    rebuild(tmp_path, use)


def test_it_never_folds_and_rebuilds_at_once(tmp_path):
    async def use(world):
        world.node.receive(3)
        world.known = world.swarm.offer()
        async with trio.open_nursery() as nursery:
            await world.node.folds.turn.acquire()
            nursery.start_soon(world.rebuilds.look)
            await trio.testing.wait_all_tasks_blocked()
            assert not_begun(world)
            world.node.folds.turn.release()
        assert world.has_it()

    rebuild(tmp_path, use)
