"""What a node follows, when its disk, its settings or its publisher fail it.

Store, weights and trust are real; the exchange only notes what it is told.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import trio

from aurora_node import following as module
from aurora_node.following import HOUSEKEEPING_SECONDS, Following
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.errors import StoreError
from aurora_p2p.local.output import Output
from aurora_p2p.swarm import events as ev
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.trust import Equivocation
from tests.host.world import NODES
from tests.node.weights_world import Node, staging
from tests.node.world import Swarm


@dataclass
class Exchange:
    fed: list[object] = field(default_factory=list)

    async def feed(self, event):
        self.fed.append(event)


class Link:
    """The part of HostLink that is followed."""

    def __init__(self):
        self.trust = SimpleNamespace(floor=SimpleNamespace(generation=3), charter=None, roster=None, publish=None)
        self.run, self.failed = b"", []

    async def commit_failed(self, failure):
        self.failed.append(failure.version)


class World:
    def __init__(self, folder, store):
        self.store, self.exchange, self.link = store, Exchange(), Link()
        self.swarm = Swarm(store, folder / "spool")
        self.node = Node(store, self.swarm, 16)
        self.link.trust.publish = self.swarm.publisher.key.peer
        self.output, self.too_large = Output(as_json=False), ""
        self.contradictions = []
        parts = SimpleNamespace(home=folder, folder=folder, store=store, output=self.output, identity=NODES[0])
        self.following = Following(
            parts, None, self.exchange, self.link, self.node.weights, lambda manifest: self.too_large
        )
        self.following.on_contradicted = self.contradictions.append


def follow(tmp_path, use):
    async def main():
        with ArtifactStore(tmp_path / "artifacts", 1 << 26) as store:
            world = World(tmp_path, store)
            async with staging(world.node):
                await use(world)

    trio.run(main)


def evidence_of(world):
    one, two = world.swarm.snapshot(0), world.swarm.snapshot(0)
    return Equivocation(one.header, two.header)


def full(path, content):
    raise StoreError(f"cannot write {path}: No space left on device")


def test_proof_against_the_publisher_is_kept_on_disk_for_its_generation(tmp_path):
    async def use(world):
        evidence = evidence_of(world)
        world.link.on_equivocation(evidence)
        assert (tmp_path / "equivocation-3.bin").read_bytes() == encode(evidence)
        assert world.contradictions == [True]
        assert World(tmp_path / "again", world.store).following.contradicted is False
        world.link.trust.floor.generation = 4
        world.link.on_charter()
        assert world.contradictions == [True, False]

    (tmp_path / "again").mkdir()
    follow(tmp_path, use)


def test_without_room_for_the_proof_the_node_stands_still_all_the_same(tmp_path, monkeypatch):
    async def use(world):
        monkeypatch.setattr(module, "write_durably", full)
        world.link.on_equivocation(evidence_of(world))
        world.link.on_charter()
        assert world.contradictions == [True, True]
        assert any("not on disk" in text for text in world.output.tail(9))

    follow(tmp_path, use)


def test_a_version_that_is_too_large_is_declined_with_figures_also_when_it_is_on_disk_already(tmp_path):
    async def use(world):
        first = world.swarm.snapshot(0)
        await world.node.announce(first)
        world.swarm.receive(first)
        world.node.weights.forget(first.artifact)
        world.too_large = "version 0 needs 17.2 GiB of memory, this machine has 15.1 GiB"
        world.store._entries.clear()  # as after a restart
        await world.following.begin()
        assert world.node.weights.problem == world.too_large
        assert world.node.engine.calls == []
        second = world.swarm.snapshot(1)
        await world.following._notice(ev.Announced(second.manifest))
        assert world.exchange.fed[-1] == ev.Decline(second.artifact)
        assert world.node.accepted == [first.artifact]

    follow(tmp_path, use)


def test_what_was_being_rebuilt_when_it_was_killed_goes_at_the_next_start_and_what_leads_further_stays(tmp_path):
    async def use(world):
        first = world.swarm.snapshot(0)
        second, rebuilt = world.swarm.delta(1, first), world.swarm.snapshot(1)
        ahead = world.swarm.delta(2, second)
        for one in (first, second, rebuilt, ahead):
            world.store.create(one.header)
        world.swarm.receive(first)
        world.swarm.receive(second)
        world.store.put_bytes(rebuilt.artifact, 0, rebuilt.segment(0))
        world.store._entries.clear()  # as after a restart
        await world.following.begin()
        told = {event.manifest.artifact for event in world.exchange.fed if isinstance(event, ev.Restored)}
        assert told == {first.artifact, second.artifact, ahead.artifact}
        assert not (world.store.root / rebuilt.artifact.hex()).exists()

    follow(tmp_path, use)


def test_an_artifact_that_rotted_is_fetched_again_in_part_and_the_host_is_told(tmp_path):
    async def use(world):
        first = world.swarm.snapshot(0)
        await world.node.announce(first)
        world.swarm.receive(first)
        path = world.store.body_path(first.artifact)
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
        await world.following._recover(first.manifest, "a torn block")
        restored = world.exchange.fed[-1]
        assert isinstance(restored, ev.Restored)
        assert 0 not in restored.have
        assert 1 in restored.have
        assert world.link.failed == [0]

    follow(tmp_path, use)


def test_an_artifact_that_cannot_be_read_back_is_left_aside_and_the_node_lives_on(tmp_path):
    async def use(world):
        first = world.swarm.snapshot(0)
        await world.node.announce(first)
        world.swarm.receive(first)
        world.store.verify = lambda artifact: full("body", b"")
        await world.following._recover(first.manifest, "a torn block")
        assert world.exchange.fed == [ev.Retire(first.artifact)]
        assert any("cannot be read back" in text for text in world.output.tail(9))

    follow(tmp_path, use)


@pytest.mark.parametrize("failing", [False, True])
def test_housekeeping_looks_for_room_again_and_survives_a_disk_that_refuses(failing, tmp_path, monkeypatch):
    async def use(world):
        first = world.swarm.snapshot(0)
        world.node.lacking = "no room"
        await world.node.announce(first)
        world.node.lacking = ""
        if failing:
            world.store.prune = lambda now: full("artifacts", b"")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.following._keep_house)
            with trio.fail_after(60):
                while not world.node.accepted:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert world.node.accepted == [first.artifact]

    monkeypatch.setattr(module, "HOUSEKEEPING_SECONDS", 0.05)
    assert HOUSEKEEPING_SECONDS < 10
    follow(tmp_path, use)
