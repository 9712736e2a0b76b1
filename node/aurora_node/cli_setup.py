"""aurora-node's settings, places and systemd unit, for the shared commands."""

from __future__ import annotations

import argparse
from pathlib import Path

from aurora_node.config import DRAIN_SECONDS, NodeConfig
from aurora_node.hours import parse_hours
from aurora_p2p.engine.names import check_engine
from aurora_p2p.errors import TicketError
from aurora_p2p.local.commands.program import Program, Service
from aurora_p2p.local.config import load_config, make_home
from aurora_p2p.local.configcheck import Problem, complaint
from aurora_p2p.local.files import write_durably
from aurora_p2p.local.log import FOLDER
from aurora_p2p.local.unit import Unit, program_words, systemd_version
from aurora_p2p.local.where import Place, disk_bytes
from aurora_p2p.net.settings import check_addresses, check_listen, check_metrics, check_quota
from aurora_p2p.wire.ticket import Ticket, parse_ticket

CONFIG = "node.toml"
KEY = "node.key"
TICKET = "ticket"
SWARMS = "swarms"
CHILD_LOGS = ("bulk.log", "engine.log", "fold.log")
DAEMON_BYTES = 2 << 30
"""Beside the engine: the daemon, the bulk child, and the page cache they work in."""
MAX_TICKET_FILE = 8192
DEVICES = ("auto", "cpu", "cuda")


def read_ticket(text: str) -> Ticket:
    """What is typed as TICKET: a ticket, a swarm id, or @FILE that holds one. Raises TicketError."""
    if not text.startswith("@"):
        return parse_ticket(text)
    path = Path(text[1:]).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            return parse_ticket(file.read(MAX_TICKET_FILE))
    except OSError as error:
        raise TicketError(f"cannot read {path}: {error.strerror}", hint="put the ticket into that file") from error
    except UnicodeDecodeError as error:
        raise TicketError(f"{path} holds no ticket", hint="put the ticket into that file") from error


def check_settings(config: NodeConfig, home: Path) -> list[Problem]:
    """What is wrong with settings that are right one by one."""
    problems = check_listen(config.listen)
    problems += check_addresses(config.bulk_listen, config.bootstraps, config.advertise, config.local)
    problems += complaint("hours", lambda: parse_hours(config.hours))
    problems += complaint("engine", lambda: check_engine(config.engine))
    if config.device.partition(":")[0] not in DEVICES:
        problems.append(Problem("device", f"there is no {config.device!r}", f"devices: {', '.join(DEVICES)}"))
    problems += check_metrics(config.metrics_listen)
    return problems + check_quota(config.quota_gib, home, disk_bytes(home / SWARMS))


def places(home: Path) -> list[Place]:
    """Every file and folder of a node."""
    found = [
        Place("config", home / CONFIG, "settings"),
        Place("key", home / KEY, "this node's identity: back it up, show it to nobody"),
        Place("ticket", home / TICKET, "the ticket that `install` starts with"),
        Place("logs", home / FOLDER, "the log: aurora-node logs"),
        *(Place(name.partition(".")[0] + "-log", home / name, "what that child process said") for name in CHILD_LOGS),
        Place("control", home / "control.sock", "where the running daemon is asked"),
    ]
    for folder in sorted((home / SWARMS).glob("*")):
        swarm = f"swarm ...{folder.name}"
        found += [
            Place("artifacts", folder / "artifacts", f"{swarm}: versions of the weights"),
            Place("memory", folder / "memory.sqlite", f"{swarm}: what is remembered of it"),
            Place("spool", folder / "spool", f"{swarm}: segments on their way in"),
        ]
    return found


def unit(home: Path, options: argparse.Namespace) -> Unit:
    """The systemd unit of `install`."""
    path = home / CONFIG
    config = load_config(path, NodeConfig) if path.exists() else NodeConfig()
    start = program_words("aurora-node", "aurora_node.cli")
    return Unit(
        program="aurora-node",
        description="Aurora node: generates rollouts for a swarm",
        words=(*start, "join", f"@{home / TICKET}", "--plain", "--home", str(home)),
        drain_seconds=DRAIN_SECONDS,
        background=True,
        memory_high=int(config.max_ram_gib * 2**30) + DAEMON_BYTES if config.max_ram_gib else 0,
        systemd=systemd_version(),
    )


def _prepare(home: Path, options: argparse.Namespace) -> None:
    """Keep the ticket in a private file, not on a command line that every user can list."""
    if options.swarm:
        ticket = read_ticket(options.swarm)
        make_home(home)
        text = str(ticket) if ticket.bootstraps or ticket.hosts else ticket.swarm
        write_durably(home / TICKET, f"{text}\n".encode())
    elif not (home / TICKET).exists():
        raise TicketError("which swarm?", hint="aurora-node install --swarm TICKET")
    else:
        read_ticket(f"@{home / TICKET}")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--swarm", metavar="TICKET", help="ticket or swarm id, or @FILE; kept in a private file")


PROGRAM = Program(
    name="aurora-node",
    short="node",
    config_file=CONFIG,
    config=NodeConfig,
    writer="aurora-node join",
    check=check_settings,
    places=places,
    service=Service(
        unit=unit,
        prepare=_prepare,
        add=_options,
        examples="  aurora-node install --swarm aurora1...    the ticket goes into a private file\n"
        "  aurora-node install --print               only show the unit",
        files=lambda home: (home / TICKET,),
    ),
    child_logs=CHILD_LOGS,
    databases=(f"{SWARMS}/*/memory.sqlite",),
)
