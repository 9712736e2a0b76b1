"""support-bundle: collects what local/bundle.py packs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.errors import AuroraError, StoreError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.clock import wall
from aurora_p2p.local.commands.program import Program
from aurora_p2p.local.control import ask, socket_path
from aurora_p2p.local.where import survey

Why = Callable[[dict[str, Any]], Sequence[str]]


def support_command(program: Program, why: Why | None) -> Command:
    """The row of the table. why: sentences from a status; None for a program that has none."""
    return Command(
        "support-bundle",
        "pack status, settings, versions and logs for somebody who helps",
        lambda home, options: _support(program, why, home, options),
        _arguments,
        about="Pack status, settings, versions, sizes and the ends of the logs into one archive, without keys,\n"
        "tickets, prompts or completions. It works when no daemon runs. Nothing is sent anywhere.",
        examples=f"  {program.name} support-bundle\n  {program.name} support-bundle --output report.tar.gz",
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="the archive to write (default: here, with a date)")


def _support(program: Program, why: Why | None, home: Path, options: argparse.Namespace) -> None:
    if not home.is_dir():
        raise StoreError(f"there is no {home}", hint="is --home the same?")
    from aurora_p2p.local.bundle import write_bundle

    now = wall()
    path = options.output or Path(f"{program.name}-support-{now:%Y%m%d-%H%M%S}.tar.gz")
    nbytes = write_bundle(path, collect(program, why, home))
    print(f"wrote {path} ({nbytes:,} bytes): read it before you send it (tar -tzf, tar -xzf)")


def collect(program: Program, why: Why | None, home: Path) -> dict[str, str]:
    """The members of a bundle by name, scrubbed."""
    from aurora_p2p.local import bundle
    from aurora_p2p.local.machine import machine

    scrub = bundle.Scrubber(home)
    status, sentences = _ask(why, home)
    settings = home / program.config_file
    surveyed = survey(home, program.places(home))
    figures = bundle.database_figures(home, program.databases, running=surveyed["pid"] is not None)
    about = {"program": program.name, "time": wall().isoformat(), **machine()}
    return {
        "README.txt": bundle.README.format(program=program.name),
        "about.json": scrub.table(about),
        "status.json": scrub.table(status),
        "why.txt": scrub.text("\n".join(sentences)) + "\n",
        "settings.toml": scrub.text(settings.read_text(errors="replace")) if settings.is_file() else "(no file)\n",
        "where.json": scrub.table(surveyed | {"disk": bundle.disk_figures(home)}),
        "databases.json": scrub.table(figures),
        **bundle.log_members(home, program.short, program.child_logs, scrub),
    }


def _ask(why: Why | None, home: Path) -> tuple[dict[str, Any], Sequence[str]]:
    try:
        status = ask(socket_path(home, "control"), "status")
    except AuroraError as error:
        return {"error": str(error)}, ["no daemon answers"]
    return status, why(status) if why is not None else ["(this program has no `why`)"]
