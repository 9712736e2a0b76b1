"""Stored artifacts made into one by a child process: the daemon's end.

    async with open_fold(sources, base=3) as folding:     base 0: a snapshot of the last state
        folding.begun                                     what a header needs
        async for piece in folding.pieces(): ...
        folding.ended                                     digest, proven against what was signed

The child decodes and encodes at the lowest priority: the daemon's loop carries nothing but pieces, and loads no kernel.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from aurora_p2p import errors
from aurora_p2p.errors import AuroraError, ChildError, WireError
from aurora_p2p.local import faults
from aurora_p2p.local.child import Child, Limits, open_child
from aurora_p2p.wire.fold import Fold, FoldBegun, FoldBody, FoldEnded, FoldFailed, FoldReply, Source

MODULE = "aurora_p2p.artifact.fold_worker"
LAST = Limits(nice=19, io_priority="idle")
"""Nobody waits for a fold: it takes what everything else on the machine leaves."""
SILENT_SECONDS = 900.0
"""The index and the sample of the longest chain, on a disk that serves everybody else first."""
INHERITED = frozenset({"PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "HOME"})


class Folding:
    """A fold under way. Made by open_fold."""

    def __init__(self, child: Child[FoldReply], begun: FoldBegun) -> None:
        self._child, self.begun = child, begun
        self.ended: FoldEnded | None = None
        """What was proven; None until the last piece was taken."""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, piece after piece. Raises CheckpointError, DigestMismatch, WireError, StoreError, ChildError."""
        while True:
            reply, payload = await _receive(self._child)
            if isinstance(reply, FoldEnded):
                self.ended = reply
                return
            if not isinstance(reply, FoldBody):
                raise ChildError(f"a fold answered with {type(reply).__name__} in its body")
            yield payload


@asynccontextmanager
async def open_fold(
    sources: Sequence[Source], *, base: int, threads: int = 1, limits: Limits = LAST, log: Path | None = None
) -> AsyncIterator[Folding]:
    """Fold a chain (squash.py says what it is). The bodies must stay where they are: pin them. Raises like `pieces`.

    log: file that gets what the child prints.
    """
    kept = INHERITED | {faults.VARIABLE}
    child: Child[FoldReply]
    async with open_child(MODULE, FoldReply, log=log, limits=limits, inherit=kept) as child:  # type: ignore[arg-type]
        await _send(child, Fold(tuple(sources), base, threads))
        begun, _ = await _receive(child)
        if not isinstance(begun, FoldBegun):
            raise ChildError(f"a fold began with {type(begun).__name__}")
        yield Folding(child, begun)


async def _send(child: Child[FoldReply], job: Fold) -> None:
    try:
        await child.channel.send(job)
    except EOFError:
        raise ChildError("the fold child ended before it began") from None


async def _receive(child: Child[FoldReply]) -> tuple[FoldReply, bytes]:
    try:
        with trio.fail_after(SILENT_SECONDS):
            reply, payload = await child.channel.receive()
    except EOFError:
        status = await child.process.wait()
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        raise ChildError(f"the fold child {how}") from None
    except WireError as error:
        raise ChildError(f"the fold child spoke nonsense: {error}") from error
    except trio.TooSlowError:
        raise ChildError(f"the fold child said nothing for {SILENT_SECONDS:.0f} s") from None
    if isinstance(reply, FoldFailed):
        raise _named_error(reply)
    return reply, payload


def _named_error(failure: FoldFailed) -> AuroraError:
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, AuroraError):
        return kind(failure.detail)
    return ChildError(f"{failure.kind}: {failure.detail}")
