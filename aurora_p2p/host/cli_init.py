"""`aurora-host init`, `run` and `delegate`: making a swarm and running it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.errors import CheckpointError, UsageError, WireError
from aurora_p2p.host.cli_setup import CONFIG, check_settings
from aurora_p2p.host.config import HostConfig
from aurora_p2p.local.cli import Command
from aurora_p2p.local.config import checked, load_config
from aurora_p2p.local.configcheck import require

INIT = """\
Make a new swarm in an empty home folder: the root key, the keys of each role, the
charter that the root signs for them, and run.toml, which documents every setting.
Afterwards move root.key to a place that is not on the network: the host runs without it."""
INIT_EXAMPLES = """\
  aurora-host init --checkpoint ./qwen3-0.6b --bootstrap /ip4/192.0.2.1/tcp/4101/p2p/12D3...
  aurora-host init --checkpoint ./tiny --listen /ip4/127.0.0.1/tcp/0 --bulk-listen 127.0.0.1:0"""
RUN = """\
Run the swarm until stopped: publish, lease work, admit results. It prints the ticket for
`aurora-node join`. On a terminal it shows a screen; --plain shows lines."""
DELEGATE = """\
Sign the next generation of keys with the root, after a backup was restored or a key was
lost. Nodes refuse older generations from then on. The host must not run meanwhile."""


def swarm_commands() -> Sequence[Command]:
    """The rows of the table."""
    return (
        Command("init", "make a new swarm: root file, keys, run.toml", _init, _init_arguments, INIT, INIT_EXAMPLES),
        Command("run", "run the swarm until stopped", _run, _run_arguments, RUN),
        Command("delegate", "sign the next generation of keys with the root", _delegate, _root, DELEGATE),
    )


def _init_arguments(init: argparse.ArgumentParser) -> None:
    init.add_argument("--checkpoint", type=Path, metavar="DIR", help="version 0: config.json and *.safetensors")
    init.add_argument("--bootstrap", action="append", default=[], metavar="ADDR", help="bootstrap to be found through")
    init.add_argument("--listen", metavar="MULTIADDR", help="control plane address to listen on")
    init.add_argument("--bulk-listen", metavar="IP:PORT", help="data plane address to listen on")
    init.add_argument("--local", action="append", default=[], metavar="CIDR", help="private network of this swarm")
    init.add_argument("--segment-bytes", type=int, metavar="N", help="bytes of one segment")
    init.add_argument("--max-lease-samples", type=int, metavar="N", help="most samples in one lease")


def _run_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument("--plain", action="store_true", help="lines instead of a screen, also on a terminal")
    run.add_argument("--json", action="store_true", help="one JSON object per event on stdout")


def _root(delegate: argparse.ArgumentParser) -> None:
    delegate.add_argument("--root", type=Path, metavar="FILE", help="the root key, where you keep it offline")


def _run(home: Path, options: argparse.Namespace) -> None:
    from aurora_p2p.host.keys import load_charter
    from aurora_p2p.host.service import run_host  # trio and libp2p: only when really running

    load_charter(home)
    config = load_config(home / CONFIG, HostConfig)
    require(found for found in check_settings(config, home) if found.key != "checkpoint")  # publishing it says more
    run_host(home, config, as_json=options.json, plain=options.plain)


def _delegate(home: Path, options: argparse.Namespace) -> None:
    from aurora_p2p.host.keys import ROOT, delegate

    print(f"signed generation {delegate(home, options.root or home / ROOT)}; restart `aurora-host run`")


def _init(home: Path, options: argparse.Namespace) -> None:
    from aurora_p2p.host.keys import ROOT, init_host

    config = checked(dataclasses.replace(HostConfig(), **_changes(options)))
    swarm = init_host(home, config)
    print(f"swarm     {swarm}")
    print(f"settings  {home / CONFIG}")
    print(f"root key  {home / ROOT}   move it to a safe place that is not on the network")
    print(f"next      aurora-host run --home {home}")


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were typed. Raises UsageError, CheckpointError."""
    from aurora_p2p.net.addresses import check_cidrs, control_ip, split_bulk

    if options.checkpoint and not (options.checkpoint / "config.json").exists():
        raise CheckpointError(
            f"{options.checkpoint} holds no config.json", hint="give the folder of a saved checkpoint"
        )
    try:
        for address in [*options.bootstrap, *([options.listen] if options.listen else [])]:
            control_ip(address)
        if options.bulk_listen:
            split_bulk(options.bulk_listen)
    except WireError as error:
        raise UsageError(
            str(error), hint="write it like /ip4/192.0.2.1/tcp/4101, and --bulk-listen like 0.0.0.0:4102"
        ) from error
    changes = {
        "checkpoint": str(options.checkpoint.resolve()) if options.checkpoint else None,
        "bootstraps": tuple(options.bootstrap) or None,
        "listen": (options.listen,) if options.listen else None,
        "bulk_listen": options.bulk_listen,
        "local": check_cidrs(options.local) or None,
        "segment_bytes": options.segment_bytes,
        "max_lease_samples": options.max_lease_samples,
    }
    return {key: value for key, value in changes.items() if value is not None}
