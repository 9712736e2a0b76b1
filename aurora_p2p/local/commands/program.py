"""What a program says of itself to the shared commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aurora_p2p.local.configcheck import Problem
from aurora_p2p.local.unit import Unit
from aurora_p2p.local.where import Place

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Service:
    """How a program is run by systemd.

    unit(home, options): pure. prepare(home, options): writes what the unit needs, before the unit is written.
    add: options of `install`. files(home): what `prepare` writes, and `uninstall` removes.
    """

    unit: Callable[[Path, argparse.Namespace], Unit]
    prepare: Callable[[Path, argparse.Namespace], None]
    add: Callable[[argparse.ArgumentParser], None]
    examples: str
    files: Callable[[Path], Sequence[Path]]


@dataclass(frozen=True, slots=True)
class Program:
    """name: as typed. short: "node", "host" or "bootstrap": names the log and the default home.

    check(config, home): cross-checks of settings; a key that is wrong already is at its default.
    writer: the command that writes the settings file. databases: SQLite files below a home, as glob patterns.
    """

    name: str
    short: str
    config_file: str
    config: type
    writer: str
    check: Callable[[Any, Path], Sequence[Problem]]
    places: Callable[[Path], Sequence[Place]]
    service: Service
    child_logs: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Daemon:
    """What a running daemon's answers look like to a person. Each is called only when it is needed.

    render(status): a few lines. why(status): sentences, the most important first. attach(home): a screen until it is
    left. paused, resumed: what to say when that has happened.
    """

    program: str
    render: Callable[[dict[str, Any]], str]
    why: Callable[[dict[str, Any]], Sequence[str]]
    attach: Callable[[Path], None]
    paused: str
    resumed: str
