"""Folding what a node has stored: real weights, a real store, a real fold child, and nobody else who knows of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
from msgspec import structs

from aurora_node import folds as module
from aurora_node.folds import Folds, mark_of
from aurora_node.known import Known
from aurora_node.presence import Stance
from aurora_p2p.artifact.manifest import manifest_hash_of
from aurora_p2p.artifact.retention import RETAIN_ARTIFACTS, RETAIN_SECONDS, restart_route
from aurora_p2p.artifact.routes import FOLD_VERSIONS
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter
from aurora_p2p.delta.apply import stage, write
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.local import faults
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import Armed, DiskRule, Plan
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import TensorEntry
from tests.artifact.conftest import Publisher
from tests.host.world import NODES

pytestmark = pytest.mark.slow

ME = NODES[0]
SPECS = (TensorSpec("a", "BF16", (4000,)), TensorSpec("b", "F32", (40, 10)))


class Node:
    """A store that follows a publisher, and what is folded of it."""

    def __init__(self, store, *, bytes_per_hour=1 << 30, floor=0):
        self.store, self.publisher, self.rng = store, Publisher(), np.random.default_rng(3)
        self.states, self.own, self.notes, self.newest = [], {}, [], None
        self.folds = Folds(store, ME, bytes_per_hour, floor)
        self.folds.publisher = lambda: self.publisher.key.peer
        self.folds.own = lambda: frozenset(self.own)
        self.folds.done = lambda manifest: self.own.update({manifest.artifact: manifest})
        self.folds.note = lambda name, **fields: self.notes.append((name, fields))

    def receive(self, times=1, share=0.05):
        """The publisher's next versions, complete in the store."""
        for _ in range(times):
            version = len(self.states)
            base = self.states[-1] if version else None
            bits = self._next(base, share)
            encoder = encode_delta(SPECS, base, bits, self.digest()) if version else encode_snapshot(SPECS, bits)
            header = self.publisher.header(version, kind="delta" if version else "snapshot")
            header = structs.replace(
                header,
                layout=layout_id(SPECS),
                base_digest=self.digest() if version else b"",
                tensors=() if version else tuple(TensorEntry(spec, "full") for spec in SPECS),
            )
            writer = ArtifactWriter(header, self.publisher.key, self.store)
            for piece in encoder:
                writer.add(piece)
            writer.finish(encoder.digest, now=boottime())
            self.states.append(bits)
            self.newest = writer.manifest

    def _next(self, base, share):
        if base is None:
            return {s.name: self.rng.integers(0, 2**15, s.elements).astype(f"u{s.nbytes // s.elements}") for s in SPECS}
        return {
            name: np.where(self.rng.random(bits.size) < share, bits + 1, bits).astype(bits.dtype)
            for name, bits in base.items()
        }

    def digest(self):
        return full_digest(SPECS, self.states[-1])

    def restart(self):
        """What a restart would load: the artifacts, and the bits that they make."""
        route = restart_route(self.store.residents())
        first, *deltas = (self.store.source(one.artifact) for one in route)
        body = lambda source: [Path(source.body).read_bytes()]  # noqa: E731
        bits, digest = read_snapshot(SPECS, body(first), first.digest), first.digest
        for delta in deltas:
            classes = ClassMap(delta.header.class_map)
            write(stage(SPECS, body(delta), bits, digest, delta.digest, classes), bits, SPECS)
            digest = delta.digest
        assert all(np.array_equal(bits[name], self.states[-1][name]) for name in bits)
        return [(one.header.kind, one.header.base_version, one.header.version) for one in route]

    def prune(self):
        self.store.prune(now=boottime() + 2 * RETAIN_SECONDS)
        self.own = {one: manifest for one, manifest in self.own.items() if self.store.is_complete(one)}


def fold(tmp_path, use, *, quota_bytes=1 << 25, **options):
    async def main():
        with ArtifactStore(tmp_path / "artifacts", quota_bytes) as store:
            await use(Node(store, **options))

    trio.run(main)


def test_many_deltas_become_one_and_a_restart_loads_the_same_bits(tmp_path):
    async def use(node):
        node.receive(FOLD_VERSIONS, share=0.01)
        await node.folds.look()
        assert node.notes == []
        node.receive()
        await node.folds.look()
        [(name, fields)] = node.notes
        assert (name, fields["kind"], fields["artifacts"]) == ("folded", "squash", FOLD_VERSIONS + 1)
        node.receive(2)
        end = FOLD_VERSIONS
        assert node.restart() == [
            ("snapshot", -1, 0),
            ("delta", 0, end),
            ("delta", end, end + 1),
            ("delta", end + 1, end + 2),
        ]
        node.prune()
        assert len(node.store.residents()) <= RETAIN_ARTIFACTS + 2
        node.restart()

    fold(tmp_path, use)


def test_what_is_folded_here_is_known_by_the_publication_that_it_ends_at(tmp_path):
    async def use(node):
        node.receive(FOLD_VERSIONS + 1)
        await node.folds.look()
        [manifest] = node.own.values()
        assert (manifest.publisher, manifest.header.nonce) == (ME.peer, mark_of(node.publisher.key.peer))
        reaches = Known(manifest, 0.0, complete=True, own=True).reaches
        assert reaches == Known(node.newest, 0.0, complete=True).reaches
        assert reaches.manifest == manifest_hash_of(node.newest.signed_final)

    fold(tmp_path, use)


def test_a_long_runs_disk_stays_bounded_and_a_squash_that_has_grown_large_becomes_a_snapshot(tmp_path):
    async def use(node):
        most, whole = 0, 0
        for _ in range(5 * FOLD_VERSIONS):
            node.receive(share=0.3)
            await node.folds.look()
            node.prune()
            residents = node.store.residents()
            whole = whole or residents[0].length
            most = max(most, sum(one.length for one in residents))
        node.restart()
        kinds = [fields["kind"] for name, fields in node.notes if name == "folded"]
        assert {"squash", "snapshot"} <= set(kinds)
        assert [name for name, _ in node.notes] == ["folded"] * len(node.notes)
        assert most < 4 * whole  # a snapshot, half of one folded, half of one not folded yet, and what replaces them

    fold(tmp_path, use)


def test_no_fold_begins_while_its_owner_wants_the_machine_or_beyond_the_budget(tmp_path, monkeypatch):
    async def use(node):
        node.receive(FOLD_VERSIONS + 1)
        looked = []
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)

        async def look():
            looked.append(True)

        node.folds.look = look
        node.folds.stand(Stance(paused_by="owner"))
        with trio.move_on_after(0.2):
            await node.folds.run()
        assert looked == []
        del node.folds.look
        node.folds._budget.spend(1 << 40, boottime())
        await node.folds.look()
        assert node.notes == []

    fold(tmp_path, use)


@pytest.mark.parametrize("rule", [DiskRule("write", "*body", hit=0), DiskRule("fsync", "*body", hit=0)])
def test_a_fold_that_finds_no_room_leaves_everything_as_it_was(tmp_path, monkeypatch, rule):
    async def use(node):
        node.receive(FOLD_VERSIONS + 1)
        before = node.store.reserved_bytes
        monkeypatch.setattr(faults, "_armed", Armed(Plan((rule,)), ""))
        await node.folds.look()
        monkeypatch.setattr(faults, "_armed", None)
        assert [name for name, _ in node.notes] == ["fold-failed"]
        assert (node.store.reserved_bytes, node.own) == (before, {})
        await node.folds.look()
        assert len(node.notes) == 1, "it is not tried again at once"
        assert len(node.restart()) == FOLD_VERSIONS + 1

    fold(tmp_path, use)


def test_a_fold_keeps_the_disk_that_its_owner_wants_free(tmp_path):
    async def use(node):
        node.receive(FOLD_VERSIONS + 1)
        await node.folds.look()
        assert [name for name, _ in node.notes] == ["fold-failed"]
        assert "no room" in node.notes[0][1]["why"]

    fold(tmp_path, use, floor=1 << 60)


def test_what_rotted_is_never_folded_into_something_that_looks_sound(tmp_path):
    async def use(node):
        node.receive(FOLD_VERSIONS + 1)
        path = node.store.body_path(next(one.artifact for one in node.store.residents() if one.header.version == 9))
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 1
        path.write_bytes(body)
        await node.folds.look()
        assert [name for name, _ in node.notes] == ["fold-failed"]
        assert node.own == {}

    fold(tmp_path, use)
