"""`aurora-host`: make a swarm, run it, look at it, or see the whole loop on this machine. The table of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.host.cli_delta import delta_command
from aurora_p2p.host.cli_init import swarm_commands
from aurora_p2p.host.cli_ledger import ledger_command
from aurora_p2p.host.cli_setup import CONFIG, PROGRAM
from aurora_p2p.local.cli import Command, Synopsis, build_parser, run_cli, run_command
from aurora_p2p.local.commands.daemon import daemon_commands
from aurora_p2p.local.commands.home import home_commands
from aurora_p2p.local.commands.program import Daemon
from aurora_p2p.local.commands.support import support_command
from aurora_p2p.local.commands.units import unit_commands
from aurora_p2p.local.config import default_home

SYNOPSIS = Synopsis(
    "aurora-host",
    "The trainer's side of a swarm: publishes signed weight updates, leases rollout work to nodes, and admits only\n"
    "what it can check.",
    """\
examples:
  aurora-host init --checkpoint ./qwen3-0.6b --bootstrap /ip4/.../tcp/4101/p2p/...
  aurora-host run                prints the swarm id and a ticket for `aurora-node join`
  aurora-host why                what the run waits for, and what to do
  aurora-host status --json      nodes, versions, leases, refusals, for scripts
  aurora-host demo               a swarm, a trainer and three nodes on this machine, measured (3 minutes)

Keys and settings live in the home folder; run.toml there documents every setting. Keep root.key offline after `init`.
`aurora-host COMMAND --help` explains each command.
""",
)


def _render(status: dict[str, Any]) -> str:
    from aurora_p2p.host.status import render_status

    return render_status(status)


def _why(status: dict[str, Any]) -> Sequence[str]:
    from aurora_p2p.host.why import why

    return why(status)


def _attach(home: Path) -> None:
    from aurora_p2p.host.screen import attach_screen

    attach_screen(home)


DEMO = """\
The whole loop on this machine, measured: a bootstrap, a host, node daemons and a trainer
that learns, with deltas and, for comparison, with full weights."""


def _demo_arguments(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--nodes", type=int, default=3, metavar="N", help="node daemons (default 3)")
    demo.add_argument("--steps", type=int, default=12, metavar="N", help="optimizer steps of the learning phase")
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="seed of model, prompts and sampling")
    demo.add_argument("--lr", type=float, default=1e-2, metavar="RATE", help="learning rate (AdamW, eps 0.1)")
    demo.add_argument("--baseline", choices=("full", "none"), default="full", help="also broadcast full weights")
    demo.add_argument("--chaos", action="store_true", help="break everything, one program after the other, meanwhile")
    demo.add_argument("--report", type=Path, metavar="FILE", help="write every figure as JSON")


def _demo(home: Path, options: argparse.Namespace) -> None:
    if options.chaos:
        from aurora_p2p.host.demo_chaos import run_chaos

        run_chaos(home, options)
    else:
        from aurora_p2p.host.demo import run_demo

        run_demo(home, options)


DAEMON = Daemon(
    program="aurora-host",
    render=_render,
    why=_why,
    attach=_attach,
    paused="paused: no new lease is granted, segments are served on; `aurora-host resume` goes on",
    resumed="resumed: leases are granted again",
)
TABLE = (
    *swarm_commands(),
    *daemon_commands(DAEMON, CONFIG),
    *home_commands(PROGRAM),
    support_command(PROGRAM, _why),
    *unit_commands(PROGRAM),
    ledger_command(),
    delta_command(),
    Command("demo", "the whole loop on this machine, measured", _demo, _demo_arguments, DEMO),
)


def parser() -> argparse.ArgumentParser:
    """The command line of aurora-host."""
    return build_parser(SYNOPSIS, TABLE)


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `aurora-host` script."""
    run_cli(lambda: _run(parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int | None:
    return run_command(options, lambda: default_home("demo" if options.command == "demo" else "host"))


if __name__ == "__main__":
    main()
