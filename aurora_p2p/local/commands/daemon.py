"""Commands that ask the running daemon over its control socket."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aurora_p2p.errors import UnreachableError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.commands.program import Daemon
from aurora_p2p.local.control import ask, quit_daemon, render_caps, socket_path
from aurora_p2p.local.output import clean

QUIT_SECONDS = 120.0
"""Longer than any daemon takes to drain."""
MAX_SENTENCE = 5000
"""Characters: a ticket (up to 4,096) in a sentence is shown whole."""
WHY = """\
Sentences about what the running daemon waits for, the most important first, and what to
type next."""
TUI = """\
A live screen of the running daemon. Its keys are in the last line; leaving the screen
stops nothing."""


def daemon_commands(daemon: Daemon, config_file: str) -> Sequence[Command]:
    """The rows of the table that need a running daemon."""
    asking = _Ask(daemon)
    return (
        status_command(daemon.render),
        Command("why", "why it waits, and what to do", asking.why, as_json, WHY),
        Command("tui", "a live screen of the running daemon", asking.tui, about=TUI),
        Command("pause", "take no new work until `resume`", asking.pause, as_json, _sentence(daemon.paused)),
        Command("resume", "work again after `pause`", asking.resume, as_json, _sentence(daemon.resumed)),
        _caps_command(daemon.program, config_file),
        Command("quit", "hand work back and end the daemon", _quit, about="Ask the daemon to drain, and wait for it."),
    )


def _caps_command(program: str, config_file: str) -> Command:
    return Command(
        "caps",
        "show or change the bandwidth caps",
        _Caps(config_file).run,
        _caps_arguments,
        about=f"Show or change the bandwidth caps of the running daemon. They last until it ends; the lasting\n"
        f"place is up_kib_per_second and down_kib_per_second in {config_file}.",
        examples=f"  {program} caps                 what holds now\n"
        f"  {program} caps --up-kib 500    at most 500 KiB/s up",
    )


def status_command(render: Callable[[dict[str, Any]], str]) -> Command:
    """The row of `status`. render: a status in a few lines."""

    def status(home: Path, options: argparse.Namespace) -> None:
        answer = ask(socket_path(home, "control"), "status")
        print(json.dumps(answer) if options.json else render(answer))

    about = "What the running daemon is doing, in a few lines; with --json the whole snapshot."
    return Command("status", "what the running daemon is doing", status, as_json, about)


def as_json(parser: argparse.ArgumentParser) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


class _Ask:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def why(self, home: Path, options: argparse.Namespace) -> None:
        sentences = [
            clean(text, MAX_SENTENCE) for text in self._daemon.why(ask(socket_path(home, "control"), "status"))
        ]
        print(json.dumps({"why": sentences}) if options.json else "\n".join(sentences))

    def tui(self, home: Path, options: argparse.Namespace) -> None:
        ask(socket_path(home, "control"), "status")  # nobody there: one line instead of an empty screen
        self._daemon.attach(home)

    def pause(self, home: Path, options: argparse.Namespace) -> None:
        self._tell(ask(socket_path(home, "control"), "pause"), self._daemon.paused, options)

    def resume(self, home: Path, options: argparse.Namespace) -> None:
        self._tell(ask(socket_path(home, "control"), "resume"), self._daemon.resumed, options)

    def _tell(self, answer: dict[str, Any], text: str, options: argparse.Namespace) -> None:
        print(json.dumps(answer) if options.json else clean(str(answer.get("text") or text), MAX_SENTENCE))


class _Caps:
    def __init__(self, config_file: str) -> None:
        self._config_file = config_file

    def run(self, home: Path, options: argparse.Namespace) -> None:
        changes = {name: value for name in ("up_kib", "down_kib") if (value := getattr(options, name)) is not None}
        answer = ask(socket_path(home, "control"), "caps", **changes)
        print(json.dumps(answer) if options.json else render_caps(answer))
        if changes and not options.json:
            print(f"until the daemon ends; for good: up_kib_per_second, down_kib_per_second in {self._config_file}")


def _caps_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--up-kib", type=float, metavar="N", help="upload cap, KiB/s (0: none)")
    parser.add_argument("--down-kib", type=float, metavar="N", help="download cap, KiB/s (0: none)")
    as_json(parser)


def _quit(home: Path, options: argparse.Namespace) -> None:
    if not quit_daemon(socket_path(home, "control"), QUIT_SECONDS):
        raise UnreachableError(f"no daemon runs in {home}", hint="is it running? is --home the same?")
    print("the daemon has drained and ended")
