"""Real daemons on two sides of an ocean: the host finds out who is where from the round trips of their kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aurora_p2p.host.programs import Program, Programs, run_once, wait_until
from aurora_p2p.testing.netlab import LabNode
from aurora_p2p.testing.wan import WanShape, open_wan

RTT_SECONDS = 0.07
LONG = 120.0
SETTLED = 1
"""Looks of the host, after a report of each node, that must agree with the first."""


def start_host(programs: Programs, where: LabNode) -> Program:
    listen = ["--listen", f"/ip4/{where.address}/tcp/4100", "--bulk-listen", f"{where.address}:4102"]
    home = programs.folder / "host"
    run_once(["aurora-host", "init", "--home", str(home), *listen, "--local", "198.18.0.0/15"])
    return programs.start("host", ["aurora-host", "run"], inside=where.command([]))


def start_node(programs: Programs, where: LabNode, name: str, ticket: str) -> Program:
    listen = ["--listen", f"/ip4/{where.address}/tcp/0", "--bulk-listen", f"{where.address}:0"]
    words = ["aurora-node", "join", ticket, *listen, "--engine", "simulated"]
    return programs.start(name, words, inside=where.command([]))


@contextmanager
def two_continents(folder: Path) -> Iterator[tuple[Program, dict[str, str]]]:
    """A host with one node beside it and two beyond an ocean; yields it, and peer id -> name of the node."""
    with open_wan(WanShape(100, RTT_SECONDS)) as wan, Programs(folder) as programs:
        here, there = wan.nodes
        host = start_host(programs, here)
        ticket = host.wait_for("ready", LONG)["ticket"]
        places = {"near": here, "far": there, "further": there}
        nodes = {name: start_node(programs, where, name, ticket) for name, where in places.items()}
        yield host, {node.wait_for("joined", LONG)["peer"]: name for name, node in nodes.items()}


def regions_of(status: dict[str, Any], names: dict[str, str]) -> dict[str, int]:
    return {names[row["peer"]]: row["region"] for row in status["nodes"] if row["peer"] in names}


@pytest.mark.slow
def test_two_regions_seventy_milliseconds_apart_are_told_apart_by_real_round_trips(tmp_path: Path) -> None:
    with two_continents(tmp_path) as (host, names):

        def told_apart() -> bool:
            regions = regions_of(host.status(), names)
            return len(regions) == 3 and regions["near"] == 0 != regions["far"] == regions["further"]

        wait_until(told_apart, LONG, "two regions")
        epoch = host.status()["roster_epoch"]
        rtts = {names[row["peer"]]: row["rtt_ms"] for row in host.status()["nodes"]}
        assert rtts["near"] < 30
        assert min(rtts["far"], rtts["further"]) >= 1000 * RTT_SECONDS

        def reported() -> bool:
            """The two beyond the ocean have reported each other, which only they can measure."""
            return host.status()["survey"]["reporters"] == 3

        wait_until(reported, LONG, "a report of each node")
        looks = host.status()["survey"]["looks"]
        wait_until(lambda: host.status()["survey"]["looks"] >= looks + SETTLED, LONG, "more looks")
        assert told_apart()
        assert host.status()["roster_epoch"] == epoch, "regions that are found stay"
