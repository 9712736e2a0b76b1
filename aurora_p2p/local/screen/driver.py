"""The drivers of a screen: snapshots are taken in the caller's loop, rendered and written in a thread.

    run_screen    a terminal of its own: frames, keys, resizing, Ctrl-Z and back
    run_plain     a line on change: for pipes, TERM=dumb and logs

A frame is drawn when it differs from the last, at most MAX_FRAMES a second. The terminal is restored however the screen
ends: cancelled, by an exception, or by SIGTERM or SIGHUP where the program has no handler of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from io import StringIO
from typing import Any

import trio
from rich.console import Console, RenderableType
from rich.text import Text

from aurora_p2p.errors import AuroraError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import clean
from aurora_p2p.local.screen.keys import Action, Keyboard, Keys, key_help, letters_of
from aurora_p2p.local.screen.terminal import Terminal, kept_stderr

MAX_FRAMES = 4
"""A second."""
LOOK_SECONDS = 0.5
"""Between two snapshots: figures change a few times a second, and a frame costs 3 ms of CPU (23 with 256 peers)."""
SAID_SECONDS = 6.0
"""How long the answer to a key is shown."""
PLAIN_SECONDS = 5.0
BACKGROUND_SECONDS = 0.5

Snapshot = Callable[[], Awaitable[Mapping[str, Any]]]
"""Plain values that nothing changes afterwards: they are rendered in another thread."""
Render = Callable[[Mapping[str, Any], int, int], RenderableType]
"""(snapshot, width, height) -> exactly `height` lines of at most `width` cells (panels.arrange)."""


class CloseScreen(Exception):
    """Raised by an action or a snapshot: leave the screen, and nothing is wrong."""


async def run_screen(snapshot: Snapshot, render: Render, keys: Keys, *, terminal: Terminal | None = None) -> None:
    """Show a screen until cancelled or closed (CloseScreen). The bottom line is the driver's: key help and answers."""
    screen = _Screen(snapshot, render, keys, terminal or Terminal.of_process())
    with kept_stderr():
        try:
            await screen.run()
        except* CloseScreen:
            pass


async def run_plain(
    snapshot: Snapshot,
    line: Callable[[Mapping[str, Any]], str],
    write: Callable[[str], None],
    *,
    every: float = PLAIN_SECONDS,
) -> None:
    """`write` each snapshot's line that differs from the last, at most once in `every` seconds, until cancelled."""
    last = ""
    while True:
        text = clean(line(await snapshot()), 500)
        if text != last:
            write(text)
            last = text
        await trio.sleep(every)


def frame_lines(renderable: RenderableType, width: int, height: int, *, colour: bool = True) -> list[str]:
    """Exactly `height` lines for a terminal; without colour there is no escape sequence in them."""
    console = Console(
        file=StringIO(),
        width=width,
        height=height,
        force_terminal=colour,
        color_system="auto" if colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        console.print(renderable, end="", no_wrap=True, overflow="crop", crop=True)
    lines = captured.get().split("\n")[:height]
    return lines + [""] * (height - len(lines))


class _Screen:
    def __init__(self, snapshot: Snapshot, render: Render, keys: Keys, terminal: Terminal) -> None:
        self._snapshot, self._render, self._terminal = snapshot, render, terminal
        self._keyboard, self._help = Keyboard(keys), key_help(keys) if terminal.source is not None else ""
        self._said, self._said_until = "", 0.0
        self._drawn: list[str] = []
        self._dirty = trio.Event()

    async def run(self) -> None:
        caught = {signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT}
        caught |= {s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL}
        with trio.open_signal_receiver(*caught) as signals:
            try:
                if self._terminal.in_foreground:
                    self._terminal.enter()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follow_signals, signals)
                    nursery.start_soon(self._follow_keys, nursery)
                    nursery.start_soon(self._draw_frames)
            finally:
                self._terminal.leave()

    # ---- frames

    async def _draw_frames(self) -> None:
        while True:
            self._dirty = trio.Event()
            taken = await self._snapshot()
            if self._terminal.shown:
                await self._draw(taken)
            await trio.sleep(1 / MAX_FRAMES)
            with trio.move_on_after(LOOK_SECONDS - 1 / MAX_FRAMES):
                await self._dirty.wait()

    async def _draw(self, taken: Mapping[str, Any]) -> None:
        width, height = self._terminal.size()
        bottom = self._bottom(boottime())
        lines = await trio.to_thread.run_sync(self._frame, taken, width, height, bottom)
        if lines != self._drawn and self._terminal.shown:
            # A terminal that takes nothing (a stalled connection) must not keep the program from ending.
            await trio.to_thread.run_sync(  # type: ignore[call-arg]  # mypy loses the keywords after *args
                partial(self._terminal.draw, lines), abandon_on_cancel=True
            )
            self._drawn = lines

    def _frame(self, taken: Mapping[str, Any], width: int, height: int, bottom: str) -> list[str]:
        text = Text(clean(bottom, width), style="reverse", no_wrap=True, overflow="ellipsis")
        text.truncate(width, pad=True)
        above = frame_lines(self._render(taken, width, height - 1), width, height - 1) if height > 1 else []
        return above + frame_lines(text, width, 1)

    def _bottom(self, now: float) -> str:
        typing = self._keyboard.typing
        if typing is not None:
            return f"{typing}_"
        return self._said if now < self._said_until else self._help

    def _redraw(self) -> None:
        self._dirty.set()

    # ---- keys

    async def _follow_keys(self, nursery: trio.Nursery) -> None:
        source = self._terminal.source
        while source is not None:
            await trio.lowlevel.wait_readable(source)
            if not self._terminal.in_foreground:
                await trio.sleep(BACKGROUND_SECONDS)
                continue
            data = self._terminal.read()
            if not data:
                return
            for letter in letters_of(data):
                action = self._keyboard.press(letter)
                if action is not None:
                    nursery.start_soon(self._act, action)
            self._redraw()

    async def _act(self, action: Action) -> None:
        try:
            said = await action()
        except AuroraError as error:
            said = f"{error}; {error.hint}" if error.hint else str(error)
        if said:
            self._said, self._said_until = said, boottime() + SAID_SECONDS
            self._redraw()

    # ---- signals

    async def _follow_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number == signal.SIGTSTP:
                self._terminal.leave()
                os.kill(os.getpid(), signal.SIGSTOP)
            elif number == signal.SIGCONT:
                self._come_back()
            elif number in (signal.SIGTERM, signal.SIGHUP):
                self._terminal.leave()
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self._drawn = []
            self._redraw()

    def _come_back(self) -> None:
        """Continued: in the foreground the screen is shown again, in the background it stays hidden."""
        if self._terminal.in_foreground:
            self._terminal.enter()
