"""A program's screen over its control commands: inside the daemon, or attached to a running one from another terminal.

    View                       what a program shows: pure renders, and keys made of `ask`
    show(view, commands, out)  in the daemon: the commands' own handlers are called
    attach(view, socket)       anywhere: the same commands over the control socket

Both draw a screen where there is a terminal for one, else a plain line when something changed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from rich.console import RenderableType

from aurora_p2p.errors import UnreachableError, UsageError
from aurora_p2p.local.control import Handler, ask, render_caps
from aurora_p2p.local.output import Output, say
from aurora_p2p.local.screen.driver import CloseScreen, run_plain, run_screen
from aurora_p2p.local.screen.keys import Key, Keys, Prompt
from aurora_p2p.local.screen.terminal import can_draw

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(command, its arguments) -> the answer. Raises AuroraError when the daemon refuses or is gone."""
LOGGED_SECONDS = 15.0
"""Between two plain lines of a daemon: they end up in files, beside its events."""
CAPS_QUESTION = "caps in KiB/s, 0 for none: UP DOWN?"


@dataclass(frozen=True, slots=True)
class View:
    """render: (status, width, height) -> exactly that many lines. line: the same in one line, for pipes."""

    render: Callable[[Mapping[str, Any], int, int], RenderableType]
    line: Callable[[Mapping[str, Any]], str]
    stopped: str
    """What to say when the daemon has ended as it was asked to: "the node has stopped"."""


async def show(view: View, commands: Mapping[str, Handler], output: Output, *, plain: bool = False) -> None:
    """In the daemon: a screen until cancelled, or a plain line on change; nothing beside JSON events.

    commands: the daemon's control commands (status, pause, resume, caps, quit). While the screen is up, `output` is
    quiet; its tail is shown as the log.
    """
    if output.as_json:
        return

    async def asked(command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await commands[command]({"command": command, **arguments})

    async def look() -> Mapping[str, Any]:
        return await asked("status", {})

    if plain or not can_draw(os.environ):
        await run_plain(look, view.line, say, every=LOGGED_SECONDS)
        return
    try:
        with output.quiet():
            await run_screen(look, view.render, control_keys(asked))
    finally:
        say(view.stopped)  # what the alternate screen showed is gone with it


def attach(view: View, path: Path) -> None:
    """From another terminal: until the person leaves (d, Ctrl-C) or the daemon ends. `path`: its control socket.

    Raises UnreachableError when no daemon answers there, or one goes away that was not told to.
    """
    try:
        trio.run(_attached, view, path)
    except* KeyboardInterrupt:
        pass


async def _attached(view: View, path: Path) -> None:
    told_to_stop = False

    async def asked(command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal told_to_stop
        told_to_stop = told_to_stop or command == "quit"  # before: it may be gone before it answers
        return await trio.to_thread.run_sync(partial(ask, path, command, **arguments))

    async def look() -> Mapping[str, Any]:
        try:
            return await asked("status", {})
        except UnreachableError:
            if told_to_stop:
                raise CloseScreen from None
            raise

    await look()  # before the screen: a daemon that is not there is one line of error
    if can_draw(os.environ, asked=True):
        await run_screen(look, view.render, {**control_keys(asked), "d": Key("detach", _detach)})
    else:
        with suppress(CloseScreen):
            await run_plain(look, view.line, say)
    if told_to_stop:
        say(view.stopped)


async def _detach() -> str | None:
    raise CloseScreen


def control_keys(asked: Ask) -> Keys:
    """p, r, c and q: the same in every program."""
    stopping = False

    async def said(command: str, **arguments: Any) -> str:
        return str((await asked(command, arguments)).get("text") or command)

    async def change_caps(typed: str) -> str:
        return render_caps(await asked("caps", typed_caps(typed))).replace("\n", ", ")

    async def stop() -> str:
        nonlocal stopping
        again, stopping = stopping, True
        await asked("quit", {"now": again})
        return (
            "stopping at once"
            if again
            else "draining: what is unfinished is handed back; press q again to stop at once"
        )

    return {
        "p": Key("pause", partial(said, "pause")),
        "r": Key("resume", partial(said, "resume")),
        "c": Prompt("caps", CAPS_QUESTION, change_caps),
        "q": Key("quit", stop),
    }


def typed_caps(text: str) -> dict[str, float]:
    """ "500 2000" -> the arguments of `caps`; one number sets both. Raises UsageError."""
    words = text.replace(",", " ").split()
    try:
        rates = [float(word) for word in words]
    except ValueError:
        rates = []
    if not 1 <= len(rates) <= 2 or not all(0 <= rate < 2**40 for rate in rates):
        raise UsageError(f"{text!r} is not one or two rates in KiB/s", hint="type 500 2000, or 0 for no cap")
    return {"up_kib": rates[0], "down_kib": rates[-1]}
