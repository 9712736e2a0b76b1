"""`aurora-host`: make a swarm, run it, look at it, or see the whole loop on this machine (`demo`)."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from aurora_p2p.errors import CheckpointError, UsageError, WireError
from aurora_p2p.host.config import HostConfig
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.config import checked, default_home, load_config
from aurora_p2p.local.control import ask, render_caps, socket_path

EPILOG = """\
examples:
  aurora-host init --checkpoint ./qwen3-0.6b --bootstrap /ip4/.../tcp/4101/p2p/...
  aurora-host run                      prints the swarm id and a ticket for `aurora-node join`
  aurora-host status --json            nodes, versions, leases, refusals, for scripts
  aurora-host demo                     a swarm, a trainer and three nodes on this machine, measured (4 minutes)

Keys and settings live in the home folder; run.toml there documents every setting. Keep root.key offline after `init`.
"""


def parser() -> argparse.ArgumentParser:
    """The command line of aurora-host."""
    top = argparse.ArgumentParser(
        prog="aurora-host",
        description="The trainer's side of a swarm: publishes signed weight updates, leases rollout work to nodes, and "
        "admits only what it can check.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init = commands.add_parser("init", help="make a new swarm: root file, keys, run.toml")
    init.add_argument("--checkpoint", type=Path, metavar="DIR", help="version 0: config.json and *.safetensors")
    init.add_argument("--bootstrap", action="append", default=[], metavar="ADDR", help="bootstrap to be found through")
    init.add_argument("--listen", metavar="MULTIADDR", help="control plane address to listen on")
    init.add_argument("--bulk-listen", metavar="IP:PORT", help="data plane address to listen on")
    init.add_argument("--local", action="append", default=[], metavar="CIDR", help="private network of this swarm")
    init.add_argument("--segment-bytes", type=int, metavar="N", help="bytes of one segment")
    init.add_argument("--max-lease-samples", type=int, metavar="N", help="most samples in one lease")
    run = commands.add_parser("run", help="run the swarm until stopped")
    run.add_argument("--json", action="store_true", help="one JSON object per event on stdout")
    status = commands.add_parser("status", help="what the running host is doing")
    status.add_argument("--json", action="store_true", help="the whole snapshot as JSON")
    caps = commands.add_parser("caps", help="change the bandwidth caps of the running host")
    caps.add_argument("--up-kib", type=float, metavar="N", help="upload cap, KiB/s (0: none)")
    caps.add_argument("--down-kib", type=float, metavar="N", help="download cap, KiB/s (0: none)")
    delegate = commands.add_parser("delegate", help="sign the next generation of keys with the root")
    delegate.add_argument("--root", type=Path, metavar="FILE", help="the root key, where you keep it offline")
    for command in (init, run, status, caps, delegate):
        command.add_argument("--home", type=Path, default=None, metavar="DIR", help="folder of keys, settings and disk")
    _demo_arguments(commands.add_parser("demo", help="the whole loop on this machine, measured"))
    return top


def _demo_arguments(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--nodes", type=int, default=3, metavar="N", help="node daemons (default 3)")
    demo.add_argument("--steps", type=int, default=12, metavar="N", help="optimizer steps of the learning phase")
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="seed of model, prompts and sampling")
    demo.add_argument("--lr", type=float, default=1e-2, metavar="RATE", help="learning rate (AdamW, eps 0.1)")
    demo.add_argument("--baseline", choices=("full", "none"), default="full", help="also broadcast full weights")
    demo.add_argument("--report", type=Path, metavar="FILE", help="write every figure as JSON")
    demo.add_argument("--home", type=Path, default=None, metavar="DIR", help="where the demo keeps its cache")


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `aurora-host` script."""
    run_cli(lambda: _run(parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> None:
    home = options.home or default_home("demo" if options.command == "demo" else "host")
    if options.command == "init":
        _init(home, options)
    elif options.command == "run":
        from aurora_p2p.host.keys import CONFIG, load_charter
        from aurora_p2p.host.service import run_host  # trio and libp2p: only when really running

        load_charter(home)
        run_host(home, load_config(home / CONFIG, HostConfig), as_json=options.json)
    elif options.command == "status":
        _status(ask(socket_path(home, "control"), "status"), as_json=options.json)
    elif options.command == "caps":
        changes = {name: value for name in ("up_kib", "down_kib") if (value := getattr(options, name)) is not None}
        print(render_caps(ask(socket_path(home, "control"), "caps", **changes)))
    elif options.command == "delegate":
        from aurora_p2p.host.keys import ROOT, delegate

        print(f"signed generation {delegate(home, options.root or home / ROOT)}; restart `aurora-host run`")
    else:
        from aurora_p2p.host.demo import run_demo

        run_demo(home, options)


def _init(home: Path, options: argparse.Namespace) -> None:
    from aurora_p2p.host.keys import CONFIG, ROOT, init_host
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
    changes: dict[str, Any] = {
        "checkpoint": str(options.checkpoint.resolve()) if options.checkpoint else None,
        "bootstraps": tuple(options.bootstrap) or None,
        "listen": (options.listen,) if options.listen else None,
        "bulk_listen": options.bulk_listen,
        "local": check_cidrs(options.local) or None,
        "segment_bytes": options.segment_bytes,
        "max_lease_samples": options.max_lease_samples,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    config = checked(dataclasses.replace(HostConfig(), **changes))
    swarm = init_host(home, config)
    print(f"swarm     {swarm}")
    print(f"settings  {home / CONFIG}")
    print(f"root key  {home / ROOT}   move it to a safe place that is not on the network")
    print(f"next      aurora-host run --home {home}")


def _status(snapshot: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(snapshot))
        return
    from aurora_p2p.host.status import render_status

    print(render_status(snapshot))
