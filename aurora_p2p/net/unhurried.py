"""Steps of libp2p that must not be cut short when their caller runs out of time.

Two reasons: a cancelled write leaves half a Noise frame behind, and frames are counted, so it ends the connection and
everything on it; and libp2p shields its clean-up from cancellation, which can hang on a stopped peer for as long as the
kernel keeps trying (VANISHED_SECONDS). So the step runs in a task of its own: the caller keeps its deadline, the step
goes on alone, and what it made is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import trio

from aurora_p2p.net.stack import STREAM_FAULTS

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Step(Generic[T]):
    done: trio.Event
    value: T | None = None
    error: Exception | None = None
    abandoned: bool = False


async def unhurried(
    nursery: trio.Nursery, step: Callable[[], Awaitable[T]], undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Await `step()`, or leave it behind when cancelled; then `undo(its result)` follows. Raises what it raises."""
    run = _Step[T](trio.Event())
    nursery.start_soon(_run, run, step, undo)
    try:
        await run.done.wait()
    except trio.Cancelled:
        run.abandoned = True
        raise
    if run.error is not None:
        raise run.error
    return run.value  # type: ignore[return-value]  # T may include None


async def _run(run: _Step[T], step: Callable[[], Awaitable[T]], undo: Callable[[T], Awaitable[None]] | None) -> None:
    try:
        run.value = await step()
    except Exception as error:  # carried over to the caller, who tells faults from bugs
        run.error = error
        if run.abandoned and not isinstance(error, STREAM_FAULTS):
            log.exception("a step failed after its caller had gone")
    run.done.set()
    if run.abandoned and run.error is None and undo is not None:
        await quietly(partial(undo, run.value))  # type: ignore[arg-type]  # T may include None


async def quietly(step: Callable[[], Awaitable[object]]) -> None:
    """For saying goodbye: whether the other side still hears it does not matter."""
    try:
        await step()
    except STREAM_FAULTS as error:
        log.debug("goodbye failed: %s", error)
