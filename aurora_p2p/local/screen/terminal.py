"""The terminal while a screen owns it.

    LEFT --enter--> SHOWN (alternate screen, no cursor, letters unbuffered and not echoed) --leave--> LEFT

Both may be called in any state; `leave` brings back exactly the modes that `enter` found. Ctrl-C and Ctrl-Z keep their
meaning. What anything writes to standard error meanwhile is kept, and shown after the last `leave`.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
from collections import deque
from collections.abc import Iterator, Mapping

from aurora_p2p.local.hangup import is_hangup, let_go_of_terminal

_SHOW = b"\x1b[?1049h\x1b[?25l\x1b[2J"
_HIDE = b"\x1b[0m\x1b[?25h\x1b[?1049l"
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"
"""One frame, drawn at once by terminals that know how."""
READ_SIZE = 1024
RESTORE_SECONDS = 1.0
"""How long a terminal that takes nothing may hold up the way out."""
KEPT_STDERR = 1 << 14
CLOSED_SIZE = (80, 24)
"""Of a terminal that is gone: what is drawn until the program has ended."""
LFLAG = 3
"""Index of the local modes in termios' attribute list."""
IFLAG = 0


def can_draw(environ: Mapping[str, str], *, asked: bool = False) -> bool:
    """Whether this process's output is a terminal that takes a screen.

    asked: the person asked for the screen by name: NO_COLOR then means one without colours, else plain lines.
    """
    if environ.get("TERM", "dumb") in {"", "dumb", "unknown"} or (environ.get("NO_COLOR") and not asked):
        return False
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return sys.stdout.isatty() and encoding == "utf8"


class Terminal:
    """source: where letters come from, None for no keys. target: where frames go. Both are descriptors."""

    def __init__(self, source: int | None, target: int) -> None:
        self.source, self._target = source, target
        self._modes: list[int | list[bytes | int]] | None = None
        self._shown = False

    @classmethod
    def of_process(cls) -> Terminal:
        """Standard input, if it is a terminal, and standard output."""
        return cls(0 if os.isatty(0) else None, 1)

    @property
    def shown(self) -> bool:
        return self._shown

    @property
    def in_foreground(self) -> bool:
        """Whether the terminal is ours now: a job in the background must neither read from it nor change its modes."""
        try:
            return os.tcgetpgrp(self._target) == os.getpgrp()
        except OSError:  # it is not our controlling terminal, so no shell takes it away
            return True

    def size(self) -> tuple[int, int]:
        """(columns, lines)."""
        try:
            columns, lines = os.get_terminal_size(self._target)
        except OSError:  # it was closed
            columns, lines = CLOSED_SIZE
        return max(columns, 1), max(lines, 1)

    def enter(self) -> None:
        """Without effect on a terminal that was closed: a hang-up also continues what was stopped (SIGCONT)."""
        if self._shown:
            self.leave()
        with contextlib.suppress(OSError, termios.error):
            self._take_keys()
            self._write_soon(_SHOW)
            self._shown = True

    def _take_keys(self) -> None:
        if self.source is not None:
            self._modes = termios.tcgetattr(self.source)
            modes = termios.tcgetattr(self.source)
            modes[LFLAG] &= ~(termios.ICANON | termios.ECHO)
            modes[IFLAG] &= ~termios.IXON
            termios.tcsetattr(self.source, termios.TCSANOW, modes)

    def leave(self) -> None:
        if not self._shown:
            return
        self._shown = False
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self._write_soon(_HIDE)
            if self.source is not None and self._modes is not None:
                termios.tcsetattr(self.source, termios.TCSANOW, self._modes)

    def draw(self, lines: list[str]) -> None:
        """Show a frame: as many lines as the terminal has. Blocks while the terminal takes nothing; one that was closed
        takes everything."""
        body = "\x1b[K\r\n".join(lines)
        try:
            self._write(_BEGIN + b"\x1b[H" + f"{body}\x1b[K\x1b[0m".encode() + _END)
        except OSError as error:
            if not is_hangup(error):
                raise

    def read(self) -> bytes:
        """What was typed; b"" when the terminal is gone. Call it when `source` is readable."""
        if self.source is None:
            return b""
        try:
            return os.read(self.source, READ_SIZE)
        except OSError:
            return b""

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._target, view) :]

    def _write_soon(self, data: bytes) -> None:
        if select.select([], [self._target], [], RESTORE_SECONDS)[1]:
            self._write(data)


@contextlib.contextmanager
def kept_stderr() -> Iterator[None]:
    """Keep what is written to descriptor 2, if that is a terminal, and write its end there on the way out."""
    if not os.isatty(2):
        yield
        return
    sys.stderr.flush()
    real = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    kept: deque[bytes] = deque()
    thread = threading.Thread(target=_keep, args=(reader, kept), daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)
        if not os.isatty(2):  # it was one: somebody closed it meanwhile
            let_go_of_terminal()
        thread.join(RESTORE_SECONDS)  # a child that was started meanwhile may hold the pipe open
        with contextlib.suppress(OSError):
            os.write(2, b"".join(list(kept)))


def _keep(reader: int, kept: deque[bytes]) -> None:
    size = 0
    with contextlib.suppress(OSError):
        while piece := os.read(reader, READ_SIZE):
            kept.append(piece)
            size += len(piece)
            while size > KEPT_STDERR:
                size -= len(kept.popleft())
    os.close(reader)
