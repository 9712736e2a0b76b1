"""`aurora-node join`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from aurora_node.cli_setup import CONFIG, check_settings, read_ticket
from aurora_node.config import NodeConfig
from aurora_p2p.errors import UsageError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.config import checked, load_config, make_home, render_config
from aurora_p2p.local.configcheck import require
from aurora_p2p.local.files import write_durably

ABOUT = """\
Join a swarm and work for it until stopped. The first join makes the home folder, a key
and node.toml. On a terminal it shows a screen; --plain shows lines. Ctrl-C or SIGTERM
hands unfinished leases back and leaves. Options below override node.toml for one run."""
EXAMPLES = """\
  aurora-node join aurora1...                         with a ticket: it carries the addresses
  aurora-node join @ticket.txt                        the same, from a file
  aurora-node join 12D3Koo... --bootstrap /ip4/...    by the bare id of a swarm
  aurora-node join aurora1... --up-kib 500 --threads 4"""


def join_command() -> Command:
    """The row of the table."""
    return Command("join", "join a swarm and work for it until stopped", _join, _arguments, ABOUT, EXAMPLES)


def _arguments(join: argparse.ArgumentParser) -> None:
    join.add_argument(
        "swarm", metavar="TICKET", nargs="?", help="ticket (aurora1...), swarm id (12D3Koo...) or @FILE that holds one"
    )
    join.add_argument("--ticket-file", metavar="FILE", help="read the ticket from FILE, like @FILE")
    join.add_argument("--bootstrap", action="append", default=[], metavar="ADDR", help="where to look for a bare id")
    join.add_argument(
        "--local", action="append", default=[], metavar="CIDR", help="private network that may be dialled"
    )
    join.add_argument("--listen", metavar="MULTIADDR", help="control plane address to listen on")
    join.add_argument("--bulk-listen", metavar="IP:PORT", help="data plane address to listen on")
    join.add_argument("--up-kib", type=float, metavar="N", help="upload cap, KiB/s (0: none)")
    join.add_argument("--down-kib", type=float, metavar="N", help="download cap, KiB/s (0: none)")
    join.add_argument("--engine", help="rollout engine (hf, or simulated[:RATE] for tests)")
    join.add_argument("--device", help="auto, cpu or cuda")
    join.add_argument("--threads", type=int, metavar="N", help="CPU threads of the engine")
    join.add_argument("--max-batch", type=int, metavar="N", help="sequences generated at once")
    join.add_argument("--audit-every", type=int, metavar="N", help="full digest audit every N commits")
    join.add_argument("--plain", action="store_true", help="lines instead of a screen, also on a terminal")
    join.add_argument("--json", action="store_true", help="one JSON object per event on stdout")


def _join(home: Path, options: argparse.Namespace) -> None:
    if (options.swarm is None) == (options.ticket_file is None):
        raise UsageError("give one ticket: TICKET, or --ticket-file FILE", hint="aurora-node join --help")
    ticket = read_ticket(options.swarm or f"@{options.ticket_file}")
    make_home(home)
    path = home / CONFIG
    if not path.exists():
        text = render_config(NodeConfig(), "Settings of this node. Command-line options override them for one run.")
        write_durably(path, text.encode())
    config = _override(load_config(path, NodeConfig), options)
    require(check_settings(config, home))
    from aurora_node.daemon import run_node  # trio and libp2p: only when really joining

    run_node(home, config, ticket, as_json=options.json, plain=options.plain)


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
