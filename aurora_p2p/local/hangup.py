"""What ends a daemon, and what it does when its terminal goes away.

SIGTERM, SIGINT    asked to end: it drains
SIGHUP             its terminal was closed: it drains as well, and writes to that terminal no more;
                   not where it was started to outlive its terminal (nohup sets SIGHUP to be ignored)
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that a daemon catches to drain."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, signal.SIGINT, *hangup)


def heard(number: int) -> None:
    """Take a caught signal in: after a hang-up, output that went to the terminal goes nowhere."""
    if number == signal.SIGHUP:
        let_go_of_terminal()


def is_hangup(error: OSError) -> bool:
    """Whether a write failed because its terminal is gone; the signal may come a moment later."""
    return error.errno == errno.EIO


def let_go_of_terminal() -> None:
    """Point standard output and standard error, where they are terminals, at the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it is closed: nothing is written there
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):  # isatty() denies it once the terminal is closed
                os.dup2(null, descriptor)
    os.close(null)
