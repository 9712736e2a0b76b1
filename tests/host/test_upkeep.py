"""What a host publishes by itself, with real weights, a real store and a real fold child."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from aurora_p2p.artifact.retention import RETAIN_MOST, RETAIN_SECONDS
from aurora_p2p.artifact.routes import FOLD_VERSIONS
from aurora_p2p.artifact.squash import Chain
from aurora_p2p.delta.apply import stage, write
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.host import upkeep as module
from aurora_p2p.host.laggards import EVERY_VERSIONS, STILL_SECONDS, Standing
from aurora_p2p.host.upkeep import Upkeep
from aurora_p2p.lease.events import From, VersionPublished
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import Armed, DiskRule, Plan
from aurora_p2p.local.output import Output
from aurora_p2p.swarm.events import Aborted, Finished, Publish
from aurora_p2p.types import Version
from aurora_p2p.wire.control import LeaseRequest, Reason, Refusal, Sampling
from aurora_p2p.wire.limits import MAX_PAGE_HASHES
from aurora_p2p.wire.trainer import SubmitPrompts
from tests.host.weights import SPECS, Training
from tests.host.world import NODES, SEGMENT, open_host

pytestmark = pytest.mark.slow

HOURLY = 1 << 30


@pytest.fixture
def clock(monkeypatch):
    """The clock of upkeep.py, set by hand."""
    now = [boottime()]
    monkeypatch.setattr(module, "boottime", lambda: now[0])
    return now


class World:
    def __init__(self, host, clock, bytes_per_hour):
        self.host, self.clock, self.training = host, clock, Training(host)
        self.output = Output(as_json=True)
        self.upkeep = Upkeep(host.desk, host.store, SEGMENT, bytes_per_hour, self.output)
        self.upkeep.standings = lambda: {peer: Standing(version, clock[0]) for peer, version in self.lagging.items()}
        self.upkeep.published = self._published
        self.lagging, self.asides = {}, []

    async def _published(self, newest):
        self.asides.append(newest)
        await self.host.pool_door.handle(VersionPublished(newest.version, newest.manifest_hash, newest.digest))

    async def look(self, times=2):
        """Looks far enough apart that who stands still is known to."""
        for _ in range(times):
            await self.upkeep.look()
            self.clock[0] += STILL_SECONDS

    def resident(self, aside):
        return next(one for one in self.host.store.residents() if one.artifact == aside.artifact)

    def body(self, aside):
        return self.host.store.body_path(aside.artifact).read_bytes()


def upkeep(tmp_path, clock, use, *, bytes_per_hour=HOURLY, quota_bytes=1 << 24):
    async def main():
        async with open_host(tmp_path, quota_bytes=quota_bytes) as host:
            await use(World(host, clock, bytes_per_hour))

    trio.run(main)


def events(capsys, name):
    return [line for line in capsys.readouterr().out.splitlines() if f'"{name}"' in line]


def test_a_laggard_gets_a_squash_that_leads_from_its_version_to_the_newest(tmp_path, clock):
    async def use(world):
        await world.training.publish(7)
        world.lagging = {NODES[0].peer: Version(2)}
        await world.look()
        [squash] = world.asides
        header = world.resident(squash).header
        assert (header.kind, header.base_version, header.version) == ("delta", 2, 6)
        assert header.base_digest == world.training.digest(2)
        bits = {name: one.copy() for name, one in world.training.states[2].items()}
        classes = ClassMap(header.class_map)
        staged = stage(SPECS, [world.body(squash)], bits, world.training.digest(2), world.training.digest(), classes)
        write(staged, bits, SPECS)
        assert all(np.array_equal(bits[name], world.training.states[6][name]) for name in bits)

    upkeep(tmp_path, clock, use)


def test_head_and_the_trainers_next_delta_take_no_notice_of_what_is_published_aside(tmp_path, clock):
    async def use(world):
        await world.training.publish(7)
        before = world.host.desk.newest
        world.lagging = {NODES[0].peer: Version(2)}
        await world.look()
        assert len(world.asides) == 1
        assert world.asides[0].seq > before.seq
        assert world.host.desk.newest == before
        await world.training.publish()
        header = world.host.driver.of(Publish)[-1].manifest.header
        assert (header.version, header.base_version, header.base_digest) == (7, 6, before.digest)
        assert world.host.desk.newest.seq == header.seq > world.asides[0].seq

    upkeep(tmp_path, clock, use)


def test_who_moves_on_or_is_close_behind_is_no_laggard(tmp_path, clock):
    async def use(world):
        await world.training.publish(7)
        world.lagging = {NODES[0].peer: Version(4), NODES[1].peer: Version(6)}
        await world.look()
        for version in (0, 1, 2, 3):
            world.lagging = {NODES[0].peer: Version(version)}
            await world.look(1)
        assert world.asides == []

    upkeep(tmp_path, clock, use)


def test_the_base_that_most_wait_at_is_served_and_a_paused_node_costs_few_squashes(tmp_path, clock):
    async def use(world):
        await world.training.publish(8)
        world.lagging = {NODES[0].peer: Version(1), NODES[1].peer: Version(3), NODES[2].peer: Version(3)}
        await world.look()
        assert [world.resident(one).header.base_version for one in world.asides] == [3]
        await world.look(4)
        assert len(world.asides) == 1, f"not again within {EVERY_VERSIONS} versions"
        world.lagging = {NODES[0].peer: Version(1)}
        made = []
        for _ in range(24):
            await world.training.publish()
            await world.look()
            made.append(len(world.asides))
        spans = [(world.resident(one).header.base_version, one.version) for one in world.asides[1:]]
        assert [base for base, _ in spans if base == 1] == [1] * len(spans)
        assert all(second - 1 >= 2 * (first - 1) for (_, first), (_, second) in itertools.pairwise(spans))

    upkeep(tmp_path, clock, use, bytes_per_hour=0)


def test_after_many_deltas_the_host_publishes_a_snapshot_and_old_artifacts_can_go(tmp_path, clock):
    async def use(world):
        await world.training.publish(1 + FOLD_VERSIONS)
        await world.look()
        [snapshot] = world.asides
        header = world.resident(snapshot).header
        assert (header.kind, header.version, header.base_version) == ("snapshot", FOLD_VERSIONS, -1)
        assert header.tensors == world.host.driver.of(Publish)[0].manifest.header.tensors
        bits = read_snapshot(SPECS, [world.body(snapshot)], world.training.digest())
        assert all(np.array_equal(bits[name], world.training.states[-1][name]) for name in bits)
        assert world.host.desk.deltas == 0
        await world.training.publish(2)
        assert world.host.desk.deltas == 2
        pruned = world.host.store.prune(now=boottime() + RETAIN_SECONDS)
        left = {(one.header.kind, one.header.version) for one in world.host.store.residents()}
        assert len(pruned) > FOLD_VERSIONS - 10
        assert {("snapshot", FOLD_VERSIONS), ("delta", FOLD_VERSIONS + 1), ("delta", FOLD_VERSIONS + 2)} <= left
        assert ("snapshot", 0) not in left

    upkeep(tmp_path, clock, use)


def test_a_snapshot_has_as_few_pages_as_can_be_and_the_status_counts_what_was_made(tmp_path, clock):
    async def use(world):
        await world.training.publish(1 + FOLD_VERSIONS)
        newest, world.lagging = world.host.desk.newest, {NODES[0].peer: Version(2)}
        await world.look(3)
        aside = [event.manifest for event in world.host.driver.of(Publish) if event.manifest.header.seq > newest.seq]
        snapshot, squash = sorted(aside, key=lambda one: one.header.kind, reverse=True)
        assert len(snapshot.pages()) == -(-snapshot.final.segments // MAX_PAGE_HASHES)
        assert squash.header.base_version == 2
        assert world.upkeep.status() == {
            "squashes": 1,
            "snapshots": 1,
            "making": None,
            "settled": FOLD_VERSIONS,
            "failed": "",
        }

    upkeep(tmp_path, clock, use)


def test_a_long_runs_disk_stays_bounded(tmp_path, clock):
    async def use(world):
        most = 0
        for _ in range(4 * FOLD_VERSIONS):
            await world.training.publish()
            await world.look(1)
            clock[0] += 30.0
            world.host.store.prune(now=boottime() + RETAIN_SECONDS * 2)
            most = max(most, len(world.host.store.residents()))
        assert len(world.asides) >= 3
        assert most <= RETAIN_MOST

    upkeep(tmp_path, clock, use)


def test_no_more_bytes_an_hour_are_written_for_snapshots_than_the_owner_allows(tmp_path, clock):
    async def use(world):
        await world.training.publish(1 + FOLD_VERSIONS)
        await world.look()
        [first] = world.asides
        await world.training.publish(FOLD_VERSIONS)
        await world.look()
        assert len(world.asides) == 1
        clock[0] += 3600 * world.resident(first).length / 10_000
        await world.look()
        assert len(world.asides) == 2

    upkeep(tmp_path, clock, use, bytes_per_hour=10_000)


def test_without_a_budget_there_are_no_snapshots_but_squashes(tmp_path, clock):
    async def use(world):
        await world.training.publish(2 + FOLD_VERSIONS)
        world.lagging = {NODES[0].peer: Version(5)}
        await world.look()
        assert [one.kind for one in world.asides] == ["delta"]

    upkeep(tmp_path, clock, use, bytes_per_hour=0)


def test_a_live_publication_goes_first(tmp_path, clock):
    async def use(world):
        training, desk = world.training, world.host.desk
        await training.publish(7)
        world.lagging = {NODES[0].peer: Version(2)}
        await world.look(1)
        folded, until_idle = [], world.upkeep._until_idle

        async def begin_meanwhile():
            if not folded:  # the fold is open, and its header is about to be written
                folded.append(True)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(training.publish)
                    await until_idle()
                assert not desk.busy
            await until_idle()

        world.upkeep._until_idle = begin_meanwhile
        await world.look(1)
        [squash] = world.asides
        live = next(one for one in world.host.driver.of(Publish) if one.manifest.header.version == 7)
        assert live.manifest.header.seq < squash.seq
        assert (squash.version, desk.newest.version) == (6, 7)

    upkeep(tmp_path, clock, use)


def test_nodes_that_came_by_snapshot_squash_or_delta_all_work_and_a_forged_digest_does_not(tmp_path, clock):
    async def use(world):
        await world.training.publish(1 + FOLD_VERSIONS)
        await world.look()
        world.lagging = {NODES[2].peer: Version(20)}
        await world.look()
        snapshot, squash = world.asides
        live = world.host.desk.newest
        assert {snapshot.digest, squash.digest, live.digest} == {live.digest}
        sampling = Sampling(1.0, 8, 300, (2,))
        await world.host.pool_door.handle(SubmitPrompts(FOLD_VERSIONS, ((1, 2),) * 6, 4, sampling))

        async def ask(node, manifest, digest=live.digest):
            request = LeaseRequest(bytes(32), world.host.ledger.run, live.version, manifest, digest, 10.0, 4)
            reply = await world.host.pool_door.handle(From(node.peer, request))
            return reply.message

        for node, manifest in zip(NODES, (live, snapshot, squash), strict=False):
            lease = await ask(node, manifest.manifest_hash)
            assert (lease.version, lease.manifest_hash, lease.digest) == (
                live.version,
                manifest.manifest_hash,
                live.digest,
            )
        forged = await ask(NODES[3], live.manifest_hash, bytes(32))
        assert isinstance(forged, Refusal)
        assert forged.reason is Reason.WRONG_DIGEST
        unknown = await ask(NODES[3], bytes(32))
        assert unknown.reason is Reason.WRONG_MANIFEST
        await world.training.publish()
        header = world.host.driver.of(Publish)[-1].manifest.header
        assert header.base_digest == live.digest, "all three take the next delta"

    upkeep(tmp_path, clock, use)


def test_after_a_restart_head_is_the_highest_version_and_every_way_to_it_is_known(tmp_path, clock):
    async def first(world):
        await world.training.publish(7)
        world.lagging = {NODES[0].peer: Version(2)}
        await world.look()
        await world.training.publish(1)
        seen.append((world.host.desk.newest, world.asides[0]))

    seen = []
    upkeep(tmp_path, clock, first)
    (newest, squash), checked = seen[0], []

    async def again(world):
        assert world.host.desk.newest == newest
        assert world.host.desk.deltas == 7
        book = world.host.pool.book
        assert squash.manifest_hash in book.versions[squash.version].manifests
        checked.append(True)

    upkeep(tmp_path, clock, again)
    assert checked


@asynccontextmanager
async def armed(monkeypatch, *rules):
    monkeypatch.setattr(faults, "_armed", Armed(Plan(rules), ""))
    yield
    monkeypatch.setattr(faults, "_armed", None)


def test_a_fold_that_finds_no_room_is_aborted_and_nothing_else_happens(tmp_path, clock, monkeypatch, capsys):
    async def use(world):
        await world.training.publish(7)
        world.lagging = {NODES[0].peer: Version(2)}
        async with armed(monkeypatch, DiskRule("write", "*body", hit=0)):
            await world.look()
        assert world.asides == []
        [abort] = world.host.driver.of(Aborted)
        before = len(world.host.driver.of(Finished))
        await world.training.publish()
        assert len(world.host.driver.of(Finished)) == before + 1
        assert len(world.host.store.residents()) == 8
        assert all(entry.pins == 0 for entry in world.host.store._entries.values())
        assert abort is not None

    upkeep(tmp_path, clock, use)
    assert len(events(capsys, "fold-failed")) == 1


def test_what_rotted_on_the_hosts_disk_is_never_published_again(tmp_path, clock, capsys):
    async def use(world):
        await world.training.publish(7)
        rotten = next(one for one in world.host.store.residents() if one.header.version == 4)
        path = world.host.store.body_path(rotten.artifact)
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 16
        path.write_bytes(body)
        world.lagging = {NODES[0].peer: Version(2)}
        await world.look()
        assert world.asides == []
        assert all(one.header.base_version != 2 or one.header.version == 3 for one in world.host.store.residents())

    upkeep(tmp_path, clock, use)
    assert len(events(capsys, "fold-failed")) == 1


def test_every_artifact_that_is_published_aside_can_be_part_of_the_next_fold(tmp_path, clock):
    async def use(world):
        await world.training.publish(7)
        world.lagging = {NODES[0].peer: Version(0)}
        await world.look()
        world.lagging = {}
        await world.training.publish(FOLD_VERSIONS)
        await world.look()
        assert [one.kind for one in world.asides] == ["delta", "snapshot"]
        read_snapshot(SPECS, [world.body(world.asides[1])], world.training.digest())
        sources = [world.host.store.source(one.artifact) for one in world.asides[1:]]
        Chain(sources).close()

    upkeep(tmp_path, clock, use)
