"""The frame around every program: errors become one clear line, a hint and an exit status.

    error: <what failed and why>
    hint:  <what to type or do next>

A bug keeps its traceback (status 1); Ctrl-C ends with 130.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from aurora_p2p.errors import AuroraError, StoreError

INTERRUPTED = 130
Expected = AuroraError | OSError | KeyboardInterrupt
EXPECTED = (AuroraError, OSError, KeyboardInterrupt)
"""What may end a program without being a bug."""


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end the process with its status (None is 0)."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
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
