"""Commands about a program's folder: where things are, its log, its settings. No daemon is needed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.commands.daemon import as_json
from aurora_p2p.local.commands.program import Program
from aurora_p2p.local.config import toml_value
from aurora_p2p.local.configcheck import Inspected, Problem, inspect
from aurora_p2p.local.where import render_survey, survey

DEFAULT_LINES = 30
MAX_LINES = 1_000_000


def home_commands(program: Program) -> Sequence[Command]:
    """The rows of the table that need only the home folder."""
    name = program.name
    return (
        Command(
            "where",
            "where keys, settings, logs and artifacts are, and how large",
            lambda home, options: _where(program, home, options),
            as_json,
        ),
        Command(
            "logs",
            "the newest lines of the log",
            lambda home, options: _logs(program, home, options),
            _logs_arguments,
            about="The newest lines of the log, oldest first, in local time. With --json as they are in the file.",
            examples=f"  {name} logs -n 100\n  {name} logs --follow           until Ctrl-C\n"
            f"  {name} logs --json -n 1000 | jq 'select(.event == \"banned\")'",
        ),
        Command(
            "config",
            "check or show the settings",
            lambda home, options: _config(program, home, options),
            _config_arguments,
            about=f"With check: everything that is wrong with {program.config_file}, at once; exit status 2 when\n"
            "something is. With show: every setting as it holds, with its meaning.",
            examples=f"  {name} config check\n  {name} config show --json",
        ),
    )


def _where(program: Program, home: Path, options: argparse.Namespace) -> None:
    surveyed = survey(home, program.places(home))
    print(json.dumps(surveyed) if options.json else render_survey(surveyed))


# ---- logs


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=_lines, default=DEFAULT_LINES, metavar="N", dest="lines", help="how many lines")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what is added, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="the lines as they are, for scripts")


def _lines(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_LINES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {MAX_LINES:,}")
    return int(text)


def _logs(program: Program, home: Path, options: argparse.Namespace) -> None:
    from aurora_p2p.local.log import log_path
    from aurora_p2p.local.logview import files_of, follow, log_end, newest_lines, render_line

    path = log_path(home, program.short)
    if not files_of(path) and not options.follow:
        raise StoreError(f"there is no log at {path}", hint="has the daemon ever run? is --home the same?")
    render = str if options.json else render_line
    end = log_end(path)
    for line in newest_lines(path, options.lines, end):
        print(render(line))
    sys.stdout.flush()
    if options.follow:
        for line in follow(path, end):
            print(render(line), flush=True)


# ---- config


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("check", "show"), help="find mistakes, or print what holds")
    as_json(parser)


def _config(program: Program, home: Path, options: argparse.Namespace) -> int:
    path = home / program.config_file
    if not path.exists():
        raise StoreError(f"there is no {path}", hint=f"`{program.writer}` writes it; is --home the same?")
    inspected: Inspected[Any] = inspect(path, program.config)
    problems = list(inspected.problems)
    problems += [found for found in program.check(inspected.config, home) if found.key not in inspected.wrong]
    if options.what == "check":
        return _tell(path, problems, as_json=options.json)
    errors = [problem for problem in problems if not problem.warning]
    if errors:
        raise UsageError(f"{path}: {errors[0].key}: {errors[0].text}", hint=f"{program.name} config check")
    _show(inspected, as_json=options.json)
    return 0


def _tell(path: Path, problems: Sequence[Problem], *, as_json: bool) -> int:
    wrong = any(not problem.warning for problem in problems)
    if as_json:
        listed = [dataclasses.asdict(problem) for problem in problems]
        print(json.dumps({"path": str(path), "ok": not wrong, "problems": listed}))
    else:
        for problem in problems:
            print(problem)
        print(f"{path}: " + (f"{len(problems)} found" if problems else "nothing wrong"))
    return UsageError.exit_status if wrong else 0


def _show(inspected: Inspected[Any], *, as_json: bool) -> None:
    fields = dataclasses.fields(inspected.config)
    if as_json:
        print(json.dumps({field.name: getattr(inspected.config, field.name) for field in fields}))
        return
    for field in fields:
        origin = "" if field.name in inspected.given else "   (default)"
        print(f"{field.name} = {toml_value(getattr(inspected.config, field.name))}{origin}")
        print(f"    {field.metadata['meaning']}")
