"""One swarm for the whole session: starting programs is what these tests cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aurora_p2p.host.programs import Programs
from tests.e2e.world import PRIVATE, Swarm

NODES = 3


@pytest.fixture(scope="session")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A bootstrap, a host and three nodes: one joined by the bare swarm id, the others by ticket.

    A test leaves as many nodes running as it found, and the trainer at the newest version.
    """
    folder: Path = tmp_path_factory.mktemp("e2e")
    with Programs(folder) as programs:
        swarm = Swarm.start(programs)
        bare = [swarm.swarm_id, "--bootstrap", swarm.address, *PRIVATE]
        swarm.nodes = [swarm.start_node(f"node{number}", bare if number == 0 else ()) for number in range(NODES)]
        swarm.settle()
        yield swarm
