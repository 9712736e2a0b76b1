"""A pseudo-terminal with a program in it: what it writes is seen, what is typed reaches it, its modes are checked."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
WAIT_SECONDS = 60.0
"""Patience with a loaded machine."""
SHOWN, LEFT, FRAME = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?2026h"
_TAKE = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Make the terminal the program's own, as a shell's job control does, whatever the tests were told to ignore."""


class PseudoTerminal:
    """The other end of a program's terminal."""

    def __init__(self, command, size=(24, 80), env=None, keys=True):
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, size)
        self.modes = termios.tcgetattr(self.slave)
        self.seen = b""
        self.program = subprocess.Popen(
            [sys.executable, "-c", _TAKE, *command],
            stdin=self.slave if keys else subprocess.DEVNULL,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", "PYTHONUTF8": "1"} | (env or {}),
        )

    def type(self, text):
        os.write(self.master, text.encode())

    def wait_for(self, text, *, times=1):
        """Return once the program has written this so often."""
        wanted = text if isinstance(text, bytes) else text.encode()
        give_up = time.monotonic() + WAIT_SECONDS
        while self.seen.count(wanted) < times:
            assert self._read(give_up - time.monotonic()), f"{wanted!r} not in {self.seen[-2000:]!r}"

    def ended(self):
        """The exit status of the program; everything it wrote has been seen."""
        give_up = time.monotonic() + WAIT_SECONDS
        while self.program.poll() is None or select.select([self.master], [], [], 0)[0]:
            assert time.monotonic() < give_up, self.seen[-2000:]
            self._read(0.05)
        return self.program.returncode

    def _read(self, seconds):
        if not select.select([self.master], [], [], max(seconds, 0))[0]:
            return False
        self.seen += os.read(self.master, 65536)
        return True

    @property
    def after(self):
        """What is on the terminal after the last screen."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen.rpartition(LEFT)[2].decode())

    @property
    def restored(self):
        hidden = self.seen.rfind(b"\x1b[?25l")
        return (
            self.seen.count(SHOWN) == self.seen.count(LEFT)
            and self.seen.rfind(b"\x1b[?25h") > hidden
            and termios.tcgetattr(self.slave) == self.modes
        )

    @property
    def frame(self):
        """The text of the newest screen."""
        newest = self.seen.rpartition(FRAME)[2]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", newest.decode(errors="ignore"))


@contextmanager
def open_terminal(command, **options):
    one = PseudoTerminal(command, **options)
    try:
        yield one
    finally:
        one.program.kill()
        one.program.wait()
        os.close(one.master)
        os.close(one.slave)
