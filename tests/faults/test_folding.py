"""A fold that is killed: the daemon at every step of the new artifact to the disk, and the child that makes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from aurora_p2p.artifact.routes import FOLD_VERSIONS
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.local import faults
from aurora_p2p.testing.faults import kill, plan, torn
from tests.node.test_folds import ME, Node

pytestmark = pytest.mark.slow

QUOTA = 1 << 25
STEPS = [
    *(("artifact.created", 1), ("page.saved", 1), ("final.signed", 1), ("final.written", 1)),
    *(("artifact.finishing", 1), ("artifact.finished", 1), ("file.synced", 1), ("file.renamed", 2), ("file.synced", 3)),
]


def folded_by(root: Path, environment: dict[str, str]) -> int:
    """Run this file as the process that folds a store; its exit status."""
    command = [sys.executable, "-m", "tests.faults.test_folding", str(root)]
    return subprocess.run(command, env={**os.environ, **environment}, check=False, timeout=120).returncode


def stored(root: Path) -> Node:
    with ArtifactStore(root, QUOTA) as store:
        node = Node(store)
        node.receive(FOLD_VERSIONS + 1)
        return node


def opened_again(node: Node, store: ArtifactStore) -> list[tuple[str, int, int]]:
    """What a start makes of the store, and the bits that a restart then loads: those of the newest version."""
    for manifest, _ in store.load(now=0.0):
        if not store.is_complete(manifest.artifact):
            assert manifest.publisher == ME.peer, "what was there before is whole"
            store.retire(manifest.artifact)
    node.store = store
    return node.restart()


@pytest.mark.parametrize("rule", [kill(point, hit=hit) for point, hit in STEPS] + [torn("*body"), torn("*pages*")])
def test_a_process_killed_anywhere_in_a_fold_leaves_the_old_artifacts_or_the_new_one_beside_them(
    tmp_path: Path, rule
) -> None:
    root = tmp_path / "store"
    node = stored(root)
    assert folded_by(root, plan(rule, process="trainer").environment()) == -signal.SIGKILL
    with ArtifactStore(root, QUOTA) as store:
        route = opened_again(node, store)
        assert len(route) in (2, FOLD_VERSIONS + 1)
    assert folded_by(root, {}) == 0
    with ArtifactStore(root, QUOTA) as store:
        assert len(opened_again(node, store)) == 2, "the next start folds"


def test_a_fold_whose_child_is_killed_fails_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with ArtifactStore(tmp_path / "store", QUOTA) as store:
            node = Node(store)
            node.receive(FOLD_VERSIONS + 1)
            before = store.reserved_bytes
            environment = plan(kill("fold.sending"), process="fold").environment()
            monkeypatch.setenv(faults.VARIABLE, environment[faults.VARIABLE])
            await node.folds.look()
            [(name, fields)] = node.notes
            assert (name, "was ended by signal 9" in fields["why"]) == ("fold-failed", True)
            assert store.reserved_bytes == before
            assert len(node.restart()) == FOLD_VERSIONS + 1

    trio.run(main)


async def _fold(root: Path) -> None:
    with ArtifactStore(root, QUOTA) as store:
        found = store.load(now=0.0)
        for manifest, _ in found:
            if not store.is_complete(manifest.artifact):
                store.retire(manifest.artifact)
        node = Node(store)
        node.own = {manifest.artifact: manifest for manifest, _ in found if manifest.publisher == ME.peer}
        await node.folds.look()


if __name__ == "__main__":
    faults.arm()
    trio.run(_fold, Path(sys.argv[1]))
