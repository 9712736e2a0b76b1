"""aurora-host's settings, places and systemd unit, for the shared commands."""

from __future__ import annotations

import argparse
from pathlib import Path

from aurora_p2p.errors import StoreError
from aurora_p2p.host.config import DRAIN_SECONDS, HostConfig
from aurora_p2p.local.commands.program import Program, Service
from aurora_p2p.local.configcheck import Problem
from aurora_p2p.local.log import FOLDER
from aurora_p2p.local.unit import Unit, program_words, systemd_version
from aurora_p2p.local.where import Place, disk_bytes
from aurora_p2p.net.settings import check_addresses, check_listen, check_metrics, check_quota

CONFIG = "run.toml"
CHILD_LOGS = ("bulk.log", "fold.log")
ROLE_KEYS = ("node", "publish", "admit", "lease")


def check_settings(config: HostConfig, home: Path) -> list[Problem]:
    """What is wrong with settings that are right one by one."""
    problems = check_listen(config.listen)
    problems += check_addresses(config.bulk_listen, config.bootstraps, config.advertise, config.local)
    problems += check_metrics(config.metrics_listen)
    if config.checkpoint and not (Path(config.checkpoint) / "config.json").is_file():
        text = f"{config.checkpoint} holds no config.json"
        hint = "give the folder of a saved checkpoint; it is read once, to publish version 0"
        problems.append(Problem("checkpoint", text, hint, warning=(home / "ledger.sqlite").exists()))
    return problems + check_quota(config.quota_gib, home, disk_bytes(home / "artifacts"))


def places(home: Path) -> list[Place]:
    """Every file and folder of a host."""
    return [
        Place("config", home / CONFIG, "settings"),
        Place("root", home / "root.key", "the swarm's root key: keep it offline, not here"),
        *(Place(f"{role}-key", home / f"{role}.key", f"the {role} key: back it up") for role in ROLE_KEYS),
        Place("charter", home / "charter.bin", "who may sign what, signed by the root"),
        Place("ledger", home / "ledger.sqlite", "publications, leases and admitted samples"),
        Place("artifacts", home / "artifacts", "published versions of the weights"),
        Place("spool", home / "spool", "segments on their way"),
        Place("logs", home / FOLDER, "the log: aurora-host logs"),
        *(Place(name.partition(".")[0] + "-log", home / name, "what that child process said") for name in CHILD_LOGS),
        Place("control", home / "control.sock", "where the running host is asked"),
        Place("trainer", home / "trainer.sock", "where the trainer connects"),
    ]


def unit(home: Path, options: argparse.Namespace) -> Unit:
    """The systemd unit of `install`."""
    return Unit(
        program="aurora-host",
        description="Aurora host: publishes weights and leases rollout work",
        words=(*program_words("aurora-host", "aurora_p2p.host.cli"), "run", "--plain", "--home", str(home)),
        drain_seconds=DRAIN_SECONDS,
        background=False,
        systemd=systemd_version(),
    )


def _prepare(home: Path, options: argparse.Namespace) -> None:
    if not (home / CONFIG).is_file():
        raise StoreError(f"{home} holds no swarm", hint=f"run `aurora-host init --home {home}` first")


PROGRAM = Program(
    name="aurora-host",
    short="host",
    config_file=CONFIG,
    config=HostConfig,
    writer="aurora-host init",
    check=check_settings,
    places=places,
    service=Service(
        unit=unit,
        prepare=_prepare,
        add=lambda parser: None,
        examples="  aurora-host install            run the swarm in this home, from now on\n"
        "  aurora-host install --print    only show the unit",
        files=lambda home: (),
    ),
    child_logs=CHILD_LOGS,
    databases=("ledger.sqlite",),
)
