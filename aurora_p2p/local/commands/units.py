"""install and uninstall: a systemd user unit that runs the daemon."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from aurora_p2p.errors import StoreError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.commands.program import Program
from aurora_p2p.local.unit import install_unit, remove_unit, render_unit, unit_path


def unit_commands(program: Program) -> Sequence[Command]:
    """The rows of the table about systemd."""
    name = program.name
    return (
        Command(
            "install",
            "write a systemd user unit that runs it",
            lambda home, options: _install(program, home, options),
            lambda parser: _install_arguments(program, parser),
            about=f"Write ~/.config/systemd/user/{name}.service. It starts nothing: it says what to type next.",
            examples=program.service.examples,
        ),
        Command(
            "uninstall",
            "remove what `install` wrote",
            lambda home, options: _uninstall(program, home),
            about="Remove what `install` wrote, and nothing else: keys, settings and artifacts stay.",
        ),
    )


def _install_arguments(program: Program, parser: argparse.ArgumentParser) -> None:
    program.service.add(parser)
    parser.add_argument("--print", action="store_true", help="print the unit and write nothing")


def _install(program: Program, home: Path, options: argparse.Namespace) -> None:
    unit = program.service.unit(home, options)
    if options.print:
        print(render_unit(unit), end="")
        return
    program.service.prepare(home, options)
    print(f"wrote     {install_unit(unit)}")
    for file in program.service.files(home):
        if file.exists():
            print(f"reads     {file}")
    print(f"start     systemctl --user daemon-reload && systemctl --user enable --now {program.name}")
    print("always    loginctl enable-linger        (also while you are not logged in)")
    print(f"look      systemctl --user status {program.name}; {program.name} logs{_at(options)}")


def _at(options: argparse.Namespace) -> str:
    """The --home that was typed, to be typed again."""
    return f" --home {shlex.quote(str(options.home))}" if options.home else ""


def _uninstall(program: Program, home: Path) -> None:
    removed = [path for path in [remove_unit(program.name)] if path is not None]
    for file in program.service.files(home):
        try:
            file.unlink()
            removed.append(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"cannot remove {file}: {error.strerror}") from error
    for path in removed:
        print(f"removed   {path}")
    if not removed:
        print(f"nothing to remove: there is no {unit_path(program.name)}")
        return
    print("next      systemctl --user daemon-reload")
    own = unit_path(program.name).with_suffix(".service.d")
    if own.is_dir():
        print(f"kept      {own}: it is yours")
