"""`aurora-node`: join a swarm with this machine, look at it, limit it, leave it. The table of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_node.cli_join import join_command
from aurora_node.cli_leave import leave_command
from aurora_node.cli_setup import CONFIG, PROGRAM
from aurora_p2p.local.cli import Synopsis, build_parser, run_cli, run_command
from aurora_p2p.local.commands.daemon import daemon_commands
from aurora_p2p.local.commands.home import home_commands
from aurora_p2p.local.commands.program import Daemon
from aurora_p2p.local.commands.support import support_command
from aurora_p2p.local.commands.units import unit_commands
from aurora_p2p.local.config import default_home

__all__ = ["CONFIG", "main", "parser"]

SYNOPSIS = Synopsis(
    "aurora-node",
    "Lend this machine to a reinforcement-learning swarm: it receives and re-serves signed weight updates, generates\n"
    "rollouts under leases, and returns signed results.",
    """\
examples:
  aurora-node join aurora1...        join with the ticket that the host printed
  aurora-node why                    why it waits, and what to do
  aurora-node caps --up-kib 500      limit the upload of a running node
  aurora-node pause                  take no work until `aurora-node resume`
  aurora-node install --swarm ...    run it in the background, from now on
  aurora-node leave                  stop, and give the disk back

Settings live in node.toml in the home folder: `aurora-node where` says where that is. `aurora-node COMMAND --help`
explains each command.
""",
)


def _render(status: dict[str, Any]) -> str:
    from aurora_node.status import render_status

    return render_status(status)


def _why(status: dict[str, Any]) -> Sequence[str]:
    from aurora_node.why import why

    return why(status)


def _attach(home: Path) -> None:
    from aurora_node.screen import attach_screen

    attach_screen(home)


DAEMON = Daemon(
    program="aurora-node",
    render=_render,
    why=_why,
    attach=_attach,
    paused="paused: no new lease is taken, segments are served on; `aurora-node resume` goes on",
    resumed="resumed: leases are asked for again",
)
TABLE = (
    join_command(),
    *daemon_commands(DAEMON, CONFIG),
    *home_commands(PROGRAM),
    support_command(PROGRAM, _why),
    *unit_commands(PROGRAM),
    leave_command(),
)


def parser() -> argparse.ArgumentParser:
    """The command line of aurora-node."""
    return build_parser(SYNOPSIS, TABLE)


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `aurora-node` script."""
    run_cli(lambda: run_command(parser().parse_args(argv), lambda: default_home("node")))


if __name__ == "__main__":
    main()
