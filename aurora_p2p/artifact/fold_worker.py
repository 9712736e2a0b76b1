"""The fold child: `python -m aurora_p2p.artifact.fold_worker --fd N`, started by folding.py for one Fold.

It reads bodies of the store and writes none: what it makes goes back over the socket. When the daemon's end closes, it
ends. An error of errors.py is answered with FoldFailed; any other exception is our own bug, is printed and ends it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Iterator

from aurora_p2p.artifact.squash import Chain, Snapshot, Squash
from aurora_p2p.errors import AuroraError
from aurora_p2p.local.channel import Channel
from aurora_p2p.local.child import inherited_channel
from aurora_p2p.local.faults import arm, reach
from aurora_p2p.wire.fold import Fold, FoldBegun, FoldBody, FoldEnded, FoldFailed

PIECE_BYTES = 1 << 20
"""Blocks of a sparse delta are a few kilobytes: they go together."""
DETAIL_CHARACTERS = 500
"""Of an error's sentence; the field takes 512."""


def fold(job: Fold, channel: Channel[Fold]) -> None:
    """Carry out one job. Raises EOFError when the daemon is gone, AuroraError when it cannot be done."""
    with Chain(job.sources) as chain:
        work = Squash(chain, job.base, threads=job.threads) if job.base else Snapshot(chain, threads=job.threads)
        channel.send(FoldBegun(chain.layout, work.classes.thresholds, work.size_bound))
        for piece in joined(work, PIECE_BYTES):
            channel.send(FoldBody(), piece)
            reach("fold.sending")
        channel.send(FoldEnded(work.digest, work.changed, work.elements))


def joined(pieces: Iterable[bytes], least: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `least`, but for the last."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= least:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def main() -> None:
    arm()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold weights
    channel: Channel[Fold] = inherited_channel(Fold)
    with contextlib.suppress(EOFError):
        job, _ = channel.receive()
        try:
            fold(job, channel)
        except AuroraError as error:
            channel.send(FoldFailed(type(error).__name__, str(error)[:DETAIL_CHARACTERS]))
    os._exit(0)  # no thread that still encodes is waited for


if __name__ == "__main__":
    main()
