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


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end the process with its status (None is 0)."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        status = main() or 0
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:  # `aurora-… | head`: the reader has gone, and that is no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except OSError as error:
        status = _report(StoreError(f"{error.filename or 'system'}: {error.strerror or error}"))
    except AuroraError as error:
        status = _report(error)
    except BaseExceptionGroup as group:
        status = _report(expected(group))
    sys.exit(status)


def expected(group: BaseExceptionGroup[BaseException]) -> AuroraError | KeyboardInterrupt:
    """The one error for a person inside nurseries' groups. Re-raises the group when it holds a bug as well."""
    rest = group.split((AuroraError, KeyboardInterrupt))[1]
    if rest is not None:
        raise group
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, AuroraError | KeyboardInterrupt)  # noqa: S101  # split() left nothing else
    return leaf


def _report(error: AuroraError | KeyboardInterrupt) -> int:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint:  {error.hint}", file=sys.stderr)
    return error.exit_status
