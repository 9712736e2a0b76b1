"""The frame around every program: a table of commands, and errors as one clear line, a hint and an exit status.

    error: <what failed and why>
    hint:  <what to type or do next>

A bug keeps its traceback (status 1); Ctrl-C ends with 130.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aurora_p2p.errors import AuroraError, StoreError
from aurora_p2p.local import faults

INTERRUPTED = 130
Expected = AuroraError | OSError | KeyboardInterrupt
EXPECTED = (AuroraError, OSError, KeyboardInterrupt)
"""What may end a program without being a bug."""

Run = Callable[[Path, argparse.Namespace], int | None]
"""Carries out a command: the program's home, what was typed -> the exit status (None is 0). Raises AuroraError."""


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """The `add` of a command that takes none but --home."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of a program's table: `name` as typed, `help` in one line, `about` and `examples` for its own --help."""

    name: str
    help: str
    run: Run
    add: Callable[[argparse.ArgumentParser], None] = no_arguments
    about: str = ""
    examples: str = ""


@dataclass(frozen=True, slots=True)
class Synopsis:
    """The head and the foot of a program's --help."""

    program: str
    about: str
    examples: str


def build_parser(synopsis: Synopsis, table: Sequence[Command]) -> argparse.ArgumentParser:
    """The command line of a program. Every command takes --home; parsed options hold the row as `command_row`."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(synopsis.program, description=synopsis.about, epilog=synopsis.examples)
    top.formatter_class = raw
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for row in table:
        epilog = f"examples:\n{row.examples}" if row.examples else None
        about = row.about or f"{row.help[0].upper()}{row.help[1:]}."
        command = commands.add_parser(row.name, help=row.help, description=about, epilog=epilog, formatter_class=raw)
        row.add(command)
        command.add_argument("--home", type=Path, metavar="DIR", help="folder of keys, settings and disk")
        command.set_defaults(command_row=row)
    return top


def run_command(options: argparse.Namespace, default: Callable[[], Path]) -> int | None:
    """Carry out what `build_parser` parsed; `default` names the home when none was typed. Raises AuroraError."""
    row: Command = options.command_row
    return row.run((options.home or default()).expanduser().absolute(), options)


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end the process with its status (None is 0)."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        faults.arm()
        status = main() or 0
        sys.stdout.flush()
    except BaseExceptionGroup as group:
        status = _report(expected(group))
    except EXPECTED as error:
        status = _report(error)
    sys.exit(status)


def expected(group: BaseExceptionGroup[BaseException]) -> Expected:
    """The one error for a person inside nurseries' groups. Re-raises the group when it holds a bug as well."""
    if group.split(EXPECTED)[1] is not None:
        raise group
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, EXPECTED)  # noqa: S101  # split() left nothing else
    return leaf


def _report(error: Expected) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # `aurora-… | head`: the reader has gone, and that is no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, OSError):
        error = StoreError(f"{error.filename or 'system'}: {error.strerror or error}")
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint:  {error.hint}", file=sys.stderr)
    return error.exit_status
