"""Nodes that are many versions behind, and runs that are long: squashes, snapshots and disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aurora_p2p.artifact.folder import read_manifest
from aurora_p2p.artifact.routes import FOLD_VERSIONS
from aurora_p2p.host.programs import Programs, wait_until
from aurora_p2p.wire.manifest import Header
from tests.e2e.world import LONG, Swarm, set_key

pytestmark = pytest.mark.slow

BEHIND = 10
FOLDED = 8
"""Deltas that take more than half of the snapshot's bytes."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Programs(tmp_path_factory.mktemp("catching-up")) as programs:
        swarm = Swarm.start(programs)
        swarm.nodes = [swarm.start_node(f"node{number}") for number in range(2)]
        swarm.settle()
        yield swarm


def stored(home: Path, signer: str = "") -> list[Header]:
    """Headers of what a home's store has complete, by any signer or by one."""
    found = []
    for marker in home.glob("**/artifacts/*/complete"):
        manifest = read_manifest(marker.parent)
        if manifest is not None and signer in ("", manifest.publisher):  # it may be retired just now
            found.append(manifest.header)
    return found


def test_a_node_ten_versions_behind_gets_one_squash(world: Swarm) -> None:
    late = world.nodes[1]
    held = late.status()["version"]
    assert late.stop() == 0
    newest = world.train(BEHIND)[-1].publication.version
    assert newest >= held + BEHIND
    squashed = world.host.wait_for("squashed", LONG)
    assert squashed["base"] == held
    world.restart(late)
    [status] = world.settle(world.nodes[1])
    assert status["version"] == newest
    taken = [header for header in stored(late.home) if header.version > held]
    assert any(header.base_version == held and header.version == squashed["version"] for header in taken)
    assert not [header for header in taken if held < header.version < squashed["version"]], "and no delta that it spans"
    world.train(2)
    world.settle()


def test_after_many_versions_the_host_has_a_snapshot_and_a_newcomer_starts_from_it(world: Swarm) -> None:
    version = world.host.status()["version"]
    world.train(max(FOLD_VERSIONS + 1 - version, 1))
    world.host.wait_for("snapshotted", LONG)
    world.train(2)
    with world.guest("newcomer") as newcomer:
        world.settle(newcomer)
        assert newcomer.stop() == 0
        taken = stored(newcomer.home)
    snapshots = [header.version for header in taken if header.kind == "snapshot"]
    assert snapshots != [0]
    assert min(header.version for header in taken) == min(snapshots) > 0


def test_a_node_folds_what_it_has_and_restarts_from_it(world: Swarm) -> None:
    world.kill_host()
    set_key(world.host.home / "run.toml", "rewrite_gib_per_hour", 0.0)  # its snapshots would be rebuilt instead
    world.start_host()
    world.train(FOLDED)
    veteran = world.nodes[0]
    peer = veteran.status()["peer"]
    wait_until(lambda: bool(stored(veteran.home, peer)), LONG, "a node that folded its deltas")
    veteran.process.kill()
    veteran.process.wait()
    again = world.restart(veteran)
    world.settle(again)
    assert stored(again.home, peer), "it is kept, and counts as what it was made of"
    world.train(1)
    world.settle()
    assert again.status()["digest_mismatches"] == 0
