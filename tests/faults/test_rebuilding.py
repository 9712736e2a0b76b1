"""A rebuild that is killed: the daemon at every step of the snapshot to the disk, and the child that makes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.local import faults
from aurora_p2p.testing.faults import kill, plan, torn
from tests.node.test_folds import Node
from tests.node.test_rebuilds import World

pytestmark = pytest.mark.slow

QUOTA, VERSIONS = 1 << 25, 4
STEPS = [
    *(("artifact.created", 1), ("page.saved", 1), ("segment.stored", 1), ("segment.stored", 9)),
    *(("file.renamed", 2), ("artifact.finishing", 1), ("artifact.finished", 1)),
]


def rebuilt_by(root: Path, environment: dict[str, str]) -> int:
    """Run this file as the process that rebuilds a snapshot into a store; its exit status."""
    command = [sys.executable, "-m", "tests.faults.test_rebuilding", str(root)]
    return subprocess.run(command, env={**os.environ, **environment}, check=False, timeout=120).returncode


def opened_again(root: Path) -> int:
    """Start anew as a node does; how many artifacts a restart loads, whose bits are those of the newest version."""
    with ArtifactStore(root, QUOTA) as store:
        node = following(store, root)
        _clear(store)
        return len(node.restart())


def following(store: ArtifactStore, root: Path) -> Node:
    """A node that knows what was published: the same whenever it is asked for."""
    scratch = root.with_name(f"scratch-{os.getpid()}-{len(list(root.parent.iterdir()))}")
    with ArtifactStore(scratch, QUOTA) as other:
        node = Node(other)
        node.receive(VERSIONS)
    node.store = store
    return node


def _clear(store: ArtifactStore) -> None:
    """What following.py lets go of at a start."""
    for manifest, _ in store.load(now=0.0):
        if not store.is_complete(manifest.artifact):
            assert manifest.header.seq > VERSIONS, "what was there before is whole"
            store.retire(manifest.artifact)


@pytest.mark.parametrize("rule", [kill(point, hit=hit) for point, hit in STEPS] + [torn("*body")])
def test_a_process_killed_anywhere_in_a_rebuild_leaves_the_old_artifacts_or_the_snapshot_beside_them(
    tmp_path: Path, rule
) -> None:
    root = tmp_path / "store"
    with ArtifactStore(root, QUOTA) as store:
        Node(store).receive(VERSIONS)
    assert rebuilt_by(root, plan(rule, process="trainer").environment()) == -signal.SIGKILL
    assert opened_again(root) in (1, VERSIONS)
    assert rebuilt_by(root, {}) == 0
    assert opened_again(root) == 1, "the next start rebuilds"


def test_a_rebuild_whose_child_is_killed_fails_and_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    async def main() -> None:
        with ArtifactStore(tmp_path / "store", QUOTA) as store:
            world = World(tmp_path, store)
            world.node.receive(VERSIONS)
            world.known = world.swarm.offer()
            before = store.reserved_bytes
            environment = plan(kill("fold.sending"), process="fold").environment()
            monkeypatch.setenv(faults.VARIABLE, environment[faults.VARIABLE])
            await world.rebuilds.look()
            [(name, fields)] = world.node.notes
            assert (name, "was ended by signal 9" in fields["why"]) == ("rebuild-failed", True)
            assert store.reserved_bytes == before
            assert len(world.node.restart()) == VERSIONS

    trio.run(main)


async def _rebuild(root: Path) -> None:
    with ArtifactStore(root, QUOTA) as store:
        node = following(store, root)
        _clear(store)
        folder = root.with_name(f"world-{os.getpid()}")
        folder.mkdir()
        world = World(folder, store)
        world.node.states, world.node.newest, world.node.publisher = node.states, node.newest, node.publisher
        world.known = world.swarm.offer(seq=1000)
        if not store.is_complete(world.known.manifest.artifact):
            faults.arm()  # what was published is there
            await world.rebuilds.look()


if __name__ == "__main__":
    trio.run(_rebuild, Path(sys.argv[1]))
