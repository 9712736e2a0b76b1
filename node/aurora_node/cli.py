"""`aurora-node`: join a swarm with this machine, look at it, change its caps."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from aurora_node.config import NodeConfig
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.config import checked, default_home, load_config, make_home, render_config
from aurora_p2p.local.control import ask, render_caps, socket_path
from aurora_p2p.local.files import write_durably
from aurora_p2p.wire.ticket import parse_ticket

CONFIG = "node.toml"

EPILOG = """\
examples:
  aurora-node join aurora1...                             join with a ticket (it carries the addresses)
  aurora-node join 12D3Koo... --bootstrap /ip4/.../p2p/...  join a swarm by its bare id
  aurora-node status --json                               what this machine is doing, for scripts
  aurora-node caps --up-kib 500                           limit the upload of a running node

Ctrl-C or SIGTERM hands unfinished leases back and leaves. Settings live in node.toml in the home folder.
"""


def parser() -> argparse.ArgumentParser:
    """The command line of aurora-node."""
    top = argparse.ArgumentParser(
        prog="aurora-node",
        description="Lend this machine to a reinforcement-learning swarm: it receives and re-serves signed weight "
        "updates, generates rollouts under leases, and returns signed results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    join = commands.add_parser("join", help="join a swarm and work for it until stopped")
    join.add_argument("swarm", metavar="TICKET", help="the ticket (aurora1...) or swarm id (12D3Koo...) from the host")
    join.add_argument("--bootstrap", action="append", default=[], metavar="ADDR", help="where to look for a bare id")
    join.add_argument(
        "--local", action="append", default=[], metavar="CIDR", help="private network that may be dialled"
    )
    join.add_argument("--listen", metavar="MULTIADDR", help="control plane address to listen on")
    join.add_argument("--bulk-listen", metavar="IP:PORT", help="data plane address to listen on")
    join.add_argument("--up-kib", type=float, metavar="N", help="upload cap, KiB/s (0: none)")
    join.add_argument("--down-kib", type=float, metavar="N", help="download cap, KiB/s (0: none)")
    join.add_argument("--engine", help="rollout engine (hf)")
    join.add_argument("--device", help="auto, cpu or cuda")
    join.add_argument("--threads", type=int, metavar="N", help="CPU threads of the engine")
    join.add_argument("--max-batch", type=int, metavar="N", help="sequences generated at once")
    join.add_argument("--audit-every", type=int, metavar="N", help="full digest audit every N commits")
    join.add_argument("--json", action="store_true", help="one JSON object per event on stdout")
    status = commands.add_parser("status", help="what the running node is doing")
    status.add_argument("--json", action="store_true", help="the whole snapshot as JSON")
    caps = commands.add_parser("caps", help="change the bandwidth caps of the running node")
    caps.add_argument("--up-kib", type=float, metavar="N", help="upload cap, KiB/s (0: none)")
    caps.add_argument("--down-kib", type=float, metavar="N", help="download cap, KiB/s (0: none)")
    for command in (join, status, caps):
        command.add_argument("--home", type=Path, default=None, metavar="DIR", help="folder of keys, settings and disk")
    return top


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `aurora-node` script."""
    run_cli(lambda: _run(parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> None:
    home = options.home or default_home("node")
    if options.command == "join":
        _join(home, options)
    elif options.command == "status":
        _status(ask(socket_path(home, "control"), "status"), as_json=options.json)
    else:
        changes = {name: value for name in ("up_kib", "down_kib") if (value := getattr(options, name)) is not None}
        print(render_caps(ask(socket_path(home, "control"), "caps", **changes)))


def _join(home: Path, options: argparse.Namespace) -> None:
    ticket = parse_ticket(options.swarm)
    make_home(home)
    path = home / CONFIG
    if not path.exists():
        text = render_config(NodeConfig(), "Settings of this node. Command-line options override them for one run.")
        write_durably(path, text.encode())
    config = _override(load_config(path, NodeConfig), options)
    from aurora_node.daemon import run_node  # trio and libp2p: only when really joining

    run_node(home, config, ticket, as_json=options.json)


def _override(config: NodeConfig, options: argparse.Namespace) -> NodeConfig:
    changes: dict[str, Any] = {
        "bulk_listen": options.bulk_listen,
        "up_kib_per_second": options.up_kib,
        "down_kib_per_second": options.down_kib,
        "engine": options.engine,
        "device": options.device,
        "threads": options.threads,
        "max_batch": options.max_batch,
        "audit_every": options.audit_every,
        "listen": (options.listen,) if options.listen else None,
        "bootstraps": tuple(options.bootstrap) or None,
        "local": (*config.local, *options.local) if options.local else None,
    }
    return checked(dataclasses.replace(config, **{key: value for key, value in changes.items() if value is not None}))


def _status(snapshot: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(snapshot))
        return
    from aurora_node.status import render_status

    print(render_status(snapshot))
