"""What `aurora-host delta` does: checkpoints and delta files in, checkpoints and delta files out, piece by piece.

Memory is what is in work: threads times a few blocks, whatever the checkpoints' size. Every output is written beside
its place and renamed, so an error or Ctrl-C leaves what was there before.

What proves a result is the BLAKE3 of each tensor, recorded when the new checkpoint was encoded. Only when one does not
match is the base looked at, to say whether it is another base or a damaged file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from aurora_p2p.artifact.container import DeltaFile, DeltaFoot, DeltaHead, check_chain, closing, opening
from aurora_p2p.artifact.layers import Layer
from aurora_p2p.artifact.parallel import in_order
from aurora_p2p.artifact.states import State, misfit
from aurora_p2p.artifact.tensorfiles import FileSet, TensorFiles, names_in_order
from aurora_p2p.artifact.tensorwrite import PARTIAL, TensorFilesWriter
from aurora_p2p.artifact.transition import Facts, Transition
from aurora_p2p.delta.block import CLASSES, DENSE, RAW, ULP, WRAP
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.hashes import TensorHash
from aurora_p2p.delta.tensors import Bits, blocks
from aurora_p2p.errors import CheckpointError, DigestMismatch, UsageError, WireError
from aurora_p2p.local.faults import disk
from aurora_p2p.local.files import disk_error, sync_folder
from aurora_p2p.types import StateDigest, TensorSpec

Show = Callable[[str, int, int], None]
"""Progress: (what is going on, done, total)."""
MODES = {RAW: "raw", WRAP: "wrap", ULP: "ulp", CLASSES: "classes", DENSE: "dense"}


@dataclass(frozen=True, slots=True)
class Effort:
    """How a command works: on so many threads, telling `show`."""

    threads: int
    show: Show


@dataclass(frozen=True, slots=True)
class NewFile:
    """A delta file to be written; `force`: it may replace one."""

    path: Path
    force: bool = False


def encode(
    base: State | None, new: State, files: FileSet, output: NewFile, effort: Effort, proof: DeltaFile | None = None
) -> None:
    """Write the delta file from `base` (None: a snapshot) to `new`, whose files are `files`.

    proof: a file whose hashes the new state must have. Raises DigestMismatch when it has not, and AuroraError.
    """
    transition = Transition(base, new, effort.threads)
    total, facts = transition.work, transition.facts
    head = DeltaHead(
        format=1,
        kind="delta" if base else "snapshot",
        base_layout=base.table.layout if base else b"",
        layout=new.table.layout,
        class_map=transition.classes.thresholds,
        tensors=transition.entries,
        files=files,
    )
    with _created(output) as out:
        out.write(opening(head))
        for piece, done in transition:
            out.write(piece)
            effort.show("encoding", done, total)
        for name, value in facts.hashes.items() if proof else ():
            if proof and value != proof.hashes[name]:
                raise DigestMismatch(f"{name!r} does not become what {proof.path} says")
        out.write(closing(_foot(facts, snapshot=base is None)))
        out.seal()


def _foot(facts: Facts, *, snapshot: bool) -> DeltaFoot:
    return DeltaFoot(
        base_digest=b"" if snapshot else facts.base_digest,
        digest=facts.digest,
        bases=b"".join(facts.bases),
        changed=facts.changed,
        elements=facts.elements,
    )


def apply(base: TensorFiles | None, chain: Sequence[DeltaFile], output: Path, effort: Effort, *, replace: bool) -> None:
    """Write the checkpoint that the files lead to. replace: the output is the base itself. Raises AuroraError."""
    after, last = layered(base, chain), chain[-1]
    replaces = base.files if replace and base is not None else None
    with TensorFilesWriter(output, last.head.files, replaces) as writer:
        for _ in _proven(base, chain, after, effort, "applying", writer.write):
            pass
        writer.commit()


def verify(base: TensorFiles | None, file: DeltaFile, effort: Effort) -> None:
    """Prove what can be proven: the seal and every CRC; with the base (a snapshot needs none) all hashes and digests.

    Raises WireError, CheckpointError, DigestMismatch.
    """
    for done in file.check_seal():
        effort.show("reading", done, file.nbytes)
    if base is None and file.head.kind == "delta":
        places = [place for _, place in file.blocks()]
        for done, _ in enumerate(in_order(file.fetch, places, effort.threads), 1):
            effort.show("checking blocks", done, len(places))
        return
    digest, stored = RunningDigest(EMPTY), file.table.stored
    for name, offset, bits in _proven(base, [file], layered(base, [file]), effort, "verifying", None):
        if name in stored:
            digest.extend(stored[name], offset, bits)
    if digest.value() != file.foot.digest:
        raise DigestMismatch(f"{file.path} does not lead to the state digest that it names")


def squash(base: TensorFiles | None, chain: Sequence[DeltaFile], output: NewFile, effort: Effort) -> None:
    """Write one file that does what all of them do. Raises AuroraError."""
    after, last = layered(base, chain), chain[-1]
    try:
        encode(base, after, last.head.files, output, effort, last)
    except (WireError, DigestMismatch):
        _blame(base, chain[0], effort)
        raise


def layered(base: TensorFiles | None, chain: Sequence[DeltaFile]) -> State:
    """The state that the files lead to. Raises UsageError, CheckpointError when they do not go together."""
    first = chain[0]
    if base is None and first.head.kind == "delta":
        raise UsageError(f"{first.path} is a delta: it needs its base", hint="name the checkpoint it was made from")
    if base is not None and first.head.kind == "snapshot":
        raise UsageError(f"{first.path} is a snapshot: it needs no base", hint="leave the base out")
    check_chain(chain)
    problem = misfit(base.table, first.head.tensors) if base is not None else ""
    if problem:
        raise CheckpointError(f"{first.path} cannot follow this base: {problem}")
    state: State | None = base
    for file in chain:
        state = Layer(state, file.stream)
    assert state is not None  # noqa: S101  # a chain has a file
    return state


def describe(file: DeltaFile) -> dict[str, Any]:
    """What a file holds, from its head, its foot and its frames: plain JSON."""
    head, foot = file.head, file.foot
    modes, payload = Counter[str](), Counter[str]()
    for _, place in file.blocks():
        modes[MODES.get(place.mode, str(place.mode))] += 1
        payload[MODES.get(place.mode, str(place.mode))] += place.nbytes
    ops = Counter(entry.op for entry in head.tensors)
    unchanged = sum(
        1 for number, entry in enumerate(head.tensors) if entry.op == "delta" and not file.places.get(number)
    )
    raw = sum(spec.nbytes for spec in file.table.specs)
    return {
        "file": str(file.path),
        "format": head.format,
        "kind": head.kind,
        "signed": False,
        "file_bytes": file.nbytes,
        "checkpoint_bytes": raw,
        "base_digest": foot.base_digest.hex(),
        "base_layout": head.base_layout.hex(),
        "digest": foot.digest.hex(),
        "layout": head.layout.hex(),
        "tensors": {op: ops[op] for op in ("delta", "full", "alias", "deleted")} | {"unchanged": unchanged},
        "elements": foot.elements,
        "changed": foot.changed,
        "changed_share": foot.changed / foot.elements if foot.elements else 0.0,
        "bits_per_change": 8 * sum(payload.values()) / foot.changed if foot.changed else 0.0,
        "class_map": list(head.class_map),
        "blocks": dict(modes),
        "block_bytes": dict(payload),
        "files": [one.name for one in head.files.files],
    }


# ---- proof


def _proven(
    base: TensorFiles | None,
    chain: Sequence[DeltaFile],
    after: State,
    effort: Effort,
    doing: str,
    use: Callable[[str, int, Bits], None] | None,
) -> Iterator[tuple[str, int, Bits]]:
    """Every piece of the new checkpoint in file order; `use` gets it first, in a worker thread.

    Raises DigestMismatch at the end of the first tensor that is not what the last file says.
    """
    last = chain[-1]
    pieces = [piece for name in names_in_order(last.head.files) for piece in _pieces(name, after)]
    total, done, hasher = sum(length for _, _, length in pieces), 0, TensorHash()

    def read(piece: tuple[str, int, int]) -> Bits:
        name, offset, length = piece
        bits = after.read(name, offset, length)
        if use is not None:
            use(name, offset, bits)
        return bits

    results = in_order(read, pieces, effort.threads)
    for name, offset, length in pieces:
        try:
            _, bits = next(results)
        except WireError:
            _blame(base, chain[0], effort)
            raise
        hasher.extend(bits)
        done += length
        effort.show(doing, done, total)
        yield name, offset, bits
        if offset + length == _spec(after, name).elements:
            if hasher.value() != last.hashes[last.table.aliases.get(name, name)]:
                _blame(base, chain[0], effort)
                raise DigestMismatch(f"{name!r} does not become what {last.path} says")
            hasher = TensorHash()


def _pieces(name: str, state: State) -> Iterator[tuple[str, int, int]]:
    for offset, length in list(blocks(_spec(state, name).elements)) or [(0, 0)]:
        yield name, offset, length


def _spec(state: State, name: str) -> TensorSpec:
    found = state.table.spec_of(name)
    assert found is not None  # noqa: S101  # the table is that of the files, checked when the delta file was opened
    return found


def _blame(base: TensorFiles | None, file: DeltaFile, effort: Effort) -> None:
    """Raises CheckpointError when a tensor of the base is not the one that the first file was made from."""
    for number, entry in enumerate(file.head.tensors):
        if base is None or entry.op != "delta":
            continue
        digest, spans = RunningDigest(EMPTY), list(blocks(entry.spec.elements))
        for (offset, _), bits in in_order(partial(_read, base, entry.spec.name), spans, effort.threads):
            digest.extend(entry.spec, offset, bits)
        if digest.value() != StateDigest(file.base_of(number)):
            raise CheckpointError(
                f"{base.path} is not the base of {file.path}: the first tensor that differs is {entry.spec.name!r}",
                hint="give the checkpoint that the delta was made from",
            )


def _read(state: State, name: str, span: tuple[int, int]) -> Bits:
    return state.read(name, *span)


# ---- output


class _SealedFile:
    """A file being written whose last bytes are the BLAKE3 of all before."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hasher = file, blake3()

    def write(self, piece: bytes) -> None:
        disk("write", Path(self._file.name))
        self._hasher.update(piece)
        self._file.write(piece)

    def seal(self) -> None:
        self._file.write(self._hasher.digest())


@contextmanager
def _created(new: NewFile) -> Iterator[_SealedFile]:
    """A file that appears whole at its end, or not at all. Raises UsageError, StoreError, DiskFullError."""
    path = new.path
    if path.is_dir() or (path.exists() and not new.force):
        raise UsageError(f"{path} exists", hint="name another file, or use --force to replace it")
    beside = path.with_name(path.name + PARTIAL)
    try:
        with beside.open("wb") as file:
            yield _SealedFile(file)
            file.flush()
            disk("fsync", beside)
            os.fsync(file.fileno())
        beside.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(f"cannot write {path}: {error.strerror}", error) from error
    finally:
        beside.unlink(missing_ok=True)
