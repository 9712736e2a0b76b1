"""`aurora-bootstrap`: the table of the commands that an operator types. Nothing heavy is imported before it serves."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from aurora_bootstrap.config import CONFIG, BootstrapConfig
from aurora_p2p.errors import UsageError
from aurora_p2p.local.cli import Command, Synopsis, build_parser, run_cli, run_command
from aurora_p2p.local.commands.daemon import status_command
from aurora_p2p.local.commands.home import home_commands
from aurora_p2p.local.commands.program import Program, Service
from aurora_p2p.local.commands.support import support_command
from aurora_p2p.local.commands.units import unit_commands
from aurora_p2p.local.config import checked, default_home, load_config, make_home, render_config
from aurora_p2p.local.configcheck import Problem
from aurora_p2p.local.files import write_durably
from aurora_p2p.local.log import FOLDER
from aurora_p2p.local.screen.figures import counted
from aurora_p2p.local.unit import Unit, program_words, systemd_version
from aurora_p2p.local.where import Place
from aurora_p2p.net.settings import check_listen, check_metrics

SYNOPSIS = Synopsis(
    "aurora-bootstrap",
    """\
A bootstrap is where the members of a swarm find each other: nodes register their
addresses with it and ask it for others. It signs nothing and sees no weights,
no prompts and no results. Run one on any machine that the others can reach.""",
    """\
examples:
  aurora-bootstrap serve                          listen on all interfaces, port 4101
  aurora-bootstrap serve --listen 127.0.0.1:4101  for this machine only
  aurora-bootstrap install                        run it in the background, from now on
  aurora-bootstrap where                          its key, settings and log

`aurora-bootstrap COMMAND --help` explains each command.""",
)
SERVE = """\
Run a bootstrap until Ctrl-C or SIGTERM. It prints its addresses, one a line, when it is
ready: give one to `aurora-host init --bootstrap ADDRESS` or `aurora-node join --bootstrap
ADDRESS`. Its key in the home folder keeps the address the same over restarts."""
SERVE_EXAMPLES = """\
  aurora-bootstrap serve                          listen on all interfaces, port 4101
  aurora-bootstrap serve --listen 127.0.0.1:4101  for this machine only
  aurora-bootstrap serve --listen 0.0.0.0:0       on any free port"""
DRAIN_SECONDS = 5.0
"""It has nothing to hand back."""


def _serve_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--listen",
        action="append",
        metavar="IP:PORT",
        help="where to listen, also as a TCP multiaddr; may be repeated (default: 0.0.0.0:4101)",
    )
    serve.add_argument("--json", action="store_true", help="print one JSON object when ready instead of plain lines")


def _serve(home: Path, options: argparse.Namespace) -> None:
    listen = tuple(map(_multiaddr, options.listen or ()))
    make_home(home)
    path = home / CONFIG
    if not path.exists():
        text = render_config(BootstrapConfig(), "Settings of this bootstrap. --listen overrides `listen` for one run.")
        write_durably(path, text.encode())
    config = load_config(path, BootstrapConfig)
    if listen:
        config = checked(replace(config, listen=listen))

    from aurora_bootstrap.service import serve  # trio and libp2p: only when really serving

    serve(home, config, as_json=options.json)


def _multiaddr(text: str) -> str:
    """ "127.0.0.1:4101" or "[::1]:4101" as a multiaddr; a multiaddr as it is. Raises UsageError."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not 0 <= int(port) < 65536:
            raise ValueError(port)
    except ValueError as error:
        raise UsageError(f"cannot listen on {text!r}", hint="write it like 0.0.0.0:4101 or [::]:4101") from error
    return f"/ip{ip.version}/{ip}/tcp/{int(port)}"


def _check(config: BootstrapConfig, home: Path) -> list[Problem]:
    problems = check_listen(config.listen) + check_metrics(config.metrics_listen)
    if config.max_per_swarm > config.max_registrations:
        problems.append(
            Problem("max_per_swarm", f"{config.max_per_swarm} are more than max_registrations", warning=True)
        )
    return problems


def _places(home: Path) -> list[Place]:
    return [
        Place("config", home / CONFIG, "settings"),
        Place("key", home / "node.key", "its identity, and so its address: back it up"),
        Place("logs", home / FOLDER, "the log: aurora-bootstrap logs"),
        Place("control", home / "control.sock", "where the running bootstrap is asked"),
    ]


def _unit(home: Path, options: argparse.Namespace) -> Unit:
    return Unit(
        program="aurora-bootstrap",
        description="Aurora bootstrap: where the members of a swarm find each other",
        words=(*program_words("aurora-bootstrap", "aurora_bootstrap.cli"), "serve", "--home", str(home)),
        drain_seconds=DRAIN_SECONDS,
        background=False,
        systemd=systemd_version(),
    )


def _render(status: dict[str, Any]) -> str:
    lines = [
        f"peer           {status['peer']}",
        f"registrations  {status['registrations']} in {counted(status['namespaces'], 'swarm')}",
        f"connections    {status['connections']}",
        *(f"asked          {kind}: {count}" for kind, count in sorted(status["requests"].items())),
        *(f"refused        {reason}: {count}" for reason, count in sorted(status["refused"].items())),
    ]
    return "\n".join(lines)


PROGRAM = Program(
    name="aurora-bootstrap",
    short="bootstrap",
    config_file=CONFIG,
    config=BootstrapConfig,
    writer="aurora-bootstrap serve",
    check=_check,
    places=_places,
    service=Service(
        unit=_unit,
        prepare=lambda home, options: None,
        add=lambda parser: None,
        examples="  aurora-bootstrap install            with the settings of bootstrap.toml\n"
        "  aurora-bootstrap install --print    only show the unit",
        files=lambda home: (),
    ),
)
TABLE = (
    Command("serve", "run a bootstrap", _serve, _serve_arguments, SERVE, SERVE_EXAMPLES),
    status_command(_render),
    *home_commands(PROGRAM),
    support_command(PROGRAM, None),
    *unit_commands(PROGRAM),
)


def parser() -> argparse.ArgumentParser:
    """The command line of aurora-bootstrap."""
    return build_parser(SYNOPSIS, TABLE)


def run(words: Sequence[str] | None = None) -> int | None:
    """Parse the command line and do what it says. Raises AuroraError."""
    return run_command(parser().parse_args(words), lambda: default_home("bootstrap"))


def main() -> NoReturn:
    """Entry point of `aurora-bootstrap`."""
    run_cli(run)


if __name__ == "__main__":
    main()
