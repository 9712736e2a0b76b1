"""Checkpoints in safetensors files, read and written piece by piece: one file, or a folder of shards with an index.

    file    := size(uint64 LE) header data        header: JSON, name -> dtype, shape, data_offsets; and __metadata__
    folder     model.safetensors, or model.safetensors.index.json and the shards it names; anything else is ignored

A checkpoint is described by its headers and its index as they are, so that it can be written again byte for byte.
Pieces are read with pread into memory of their own, never mapped: a file that somebody cuts short meanwhile is an
error and not a SIGBUS, and memory is what is in work. A header is believed in nothing: its tensors must tile the data.

Tied tensors: two of one dtype and shape, of at least TIED_BYTES, with the same bits. The first by name is stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import numpy as np
from msgspec import Meta, ValidationError, convert

from aurora_p2p.artifact.states import Table
from aurora_p2p.delta.tensors import Bits, bits_dtype, blocks
from aurora_p2p.errors import CheckpointError, ShapeError, WireError
from aurora_p2p.types import DTYPES, Record, TensorSpec

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READY = ".aurora-ready"
"""Folder in which an in-place apply has the whole new checkpoint, about to be moved (tensorwrite.py)."""
MAX_HEADER = 100_000_000
"""Bytes of a header: the limit of the safetensors format."""
TIED_BYTES = 1 << 20
"""Smaller tied tensors cost nothing to store twice, and equal norms are no ties."""
_PROBE_ELEMENTS = 2048
_PREFIX = 8


class TensorFile(Record, frozen=True):
    """One safetensors file without its data: its name in the folder, and its header as it is on disk."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    header: Annotated[bytes, Meta(max_length=MAX_HEADER)]


class FileSet(Record, frozen=True):
    """What a checkpoint's files are besides their data. folder: False for a lone file; index: as on disk, or empty."""

    files: Annotated[tuple[TensorFile, ...], Meta(min_length=1, max_length=10_000)]
    index: Annotated[bytes, Meta(max_length=MAX_HEADER)]
    folder: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is: number of the file, first byte in it."""

    spec: TensorSpec
    file: int
    begin: int


def stored_in(files: FileSet) -> dict[str, Stored]:
    """Every tensor of a set of files, in the order of the data. Raises WireError when it is not well formed."""
    found: dict[str, Stored] = {}
    for number, file in enumerate(files.files):
        if Path(file.name).name != file.name or file.name in (".", ".."):
            raise WireError(f"a checkpoint names a file outside its folder: {file.name!r}")
        for stored in _parse(file, number):
            if stored.spec.name in found:
                raise WireError(f"the tensor {stored.spec.name!r} is in two files")
            found[stored.spec.name] = stored
    if len({file.name for file in files.files}) != len(files.files) or (not files.folder and len(files.files) > 1):
        raise WireError("a checkpoint names one file twice")
    return found


def _parse(file: TensorFile, number: int) -> list[Stored]:
    try:
        table = json.loads(file.header, object_pairs_hook=_unique)
        table.pop("__metadata__", None)
        rows = [
            (convert(row["data_offsets"], tuple[int, int]), name, row["dtype"], row["shape"])
            for name, row in table.items()
        ]
        rows.sort(key=lambda row: row[0])
        stored, end = [], 0
        for (begin, stop), name, dtype, shape in rows:
            if dtype not in DTYPES:
                raise WireError(f"{name!r} is stored as {dtype}, which is not supported")
            spec = convert([name, dtype, shape], TensorSpec)
            if begin != end or stop != begin + spec.nbytes:
                raise WireError(f"{name!r} is not {spec.nbytes} bytes behind the tensor before it")
            stored.append(Stored(spec, number, _PREFIX + len(file.header) + begin))
            end = stop
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ValidationError) as error:
        raise WireError(f"{file.name} has no safetensors header: {error}") from error
    return stored


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name repeats")
    return found


def data_end(files: FileSet) -> list[int]:
    """Size of each file, bytes."""
    ends = [_PREFIX + len(file.header) for file in files.files]
    for stored in stored_in(files).values():
        ends[stored.file] = max(ends[stored.file], stored.begin + stored.spec.nbytes)
    return ends


class TensorFiles:
    """An open checkpoint: a state whose table names every tensor of the files. Close it, or use `with`."""

    def __init__(self, path: Path, files: FileSet, descriptors: Sequence[int]) -> None:
        self.path, self.files, self._descriptors = path, files, descriptors
        self._stored = stored_in(files)
        self.table = Table(tuple(self._stored[name].spec for name in sorted(self._stored)))
        self.table = self._tied()

    @classmethod
    def open(cls, path: Path) -> Self:
        """path: a safetensors file, or a folder of them. Raises CheckpointError."""
        folder = path.is_dir()
        if folder and (path / READY).is_dir():
            raise CheckpointError(
                f"{path} holds an in-place apply that was interrupted when it was complete",
                hint=f"aurora-host delta apply {path} --in-place   finishes it",
            )
        index, names = _listed(path) if folder else (b"", [path.name])
        descriptors: list[int] = []
        try:
            files = []
            for name in names:
                descriptors.append(os.open((path if folder else path.parent) / name, os.O_RDONLY))
                files.append(TensorFile(name, _header(descriptors[-1], name)))
            opened = cls(path, FileSet(tuple(files), index, folder), descriptors)
            opened._check_sizes()
        except (OSError, WireError, CheckpointError) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, CheckpointError):
                raise
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise CheckpointError(f"cannot read the checkpoint {path}: {reason}") from error
        return opened

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self, name: str, offset: int, length: int) -> Bits:
        stored = self._stored.get(name)
        if stored is None or offset + length > stored.spec.elements:
            raise ShapeError(f"there is no {name!r} with {offset + length} elements")
        bits: Bits = np.empty(length, bits_dtype(stored.spec.dtype).newbyteorder("<"))
        if length:
            self._fill(stored, stored.begin + offset * bits.itemsize, bits.view(np.uint8).data)
        return bits.astype(bits.dtype.newbyteorder("="), copy=False)

    def _fill(self, stored: Stored, at: int, room: memoryview) -> None:
        while room.nbytes:
            try:
                count = os.preadv(self._descriptors[stored.file], [room], at)
            except OSError as error:
                raise CheckpointError(f"cannot read {stored.spec.name!r} of {self.path}: {error.strerror}") from error
            if not count:
                raise CheckpointError(f"{self.path} was cut short: {stored.spec.name!r} is not there any more")
            room, at = room[count:], at + count

    def _check_sizes(self) -> None:
        for file, descriptor, end in zip(self.files.files, self._descriptors, data_end(self.files), strict=True):
            found = os.fstat(descriptor).st_size
            if found != end:
                raise WireError(f"{file.name} has {found} bytes, and its header says {end}")
        for name, where in _weight_map(self.files.index).items():
            if name not in self._stored or self.files.files[self._stored[name].file].name != where:
                raise WireError(f"the index names the tensor {name!r} in {where}, which does not hold it")

    def _tied(self) -> Table:
        """The table with tied tensors as aliases: compared by a probe, then in full."""
        groups: dict[tuple[str, tuple[int, ...], bytes], list[TensorSpec]] = {}
        aliases: dict[str, str] = {}
        for spec in self.table.specs:
            if spec.nbytes < TIED_BYTES:
                continue
            probe = self.read(spec.name, spec.elements // 2, min(_PROBE_ELEMENTS, spec.elements // 2)).tobytes()
            group = groups.setdefault((spec.dtype, spec.shape, probe), [])
            same = next((other.name for other in group if self._equal(other, spec)), None)
            if same is None:
                group.append(spec)
            else:
                aliases[spec.name] = same
        return Table(tuple(spec for spec in self.table.specs if spec.name not in aliases), aliases)

    def _equal(self, one: TensorSpec, other: TensorSpec) -> bool:
        return all(
            np.array_equal(self.read(one.name, offset, length), self.read(other.name, offset, length))
            for offset, length in blocks(one.elements)
        )


def _listed(folder: Path) -> tuple[bytes, list[str]]:
    """(index as it is or nothing, names of the files). Raises CheckpointError."""
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}", hint="name a safetensors file")
        return b"", [SINGLE]
    try:
        index = (folder / INDEX).read_bytes()
        names = sorted(set(_weight_map(index).values()))
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names no files, or files outside its folder")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"cannot read {folder / INDEX}: {error}") from error
    return index, names


def _weight_map(index: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(index)["weight_map"] if index else {}
    return found


def _header(descriptor: int, name: str) -> bytes:
    size = int.from_bytes(os.pread(descriptor, _PREFIX, 0), "little")
    if not 2 <= size <= MAX_HEADER:
        raise WireError(f"{name} is not a safetensors file")
    header = os.pread(descriptor, size, _PREFIX)
    if len(header) != size:
        raise WireError(f"{name} ends inside its header")
    return header


def names_in_order(files: FileSet) -> Iterator[str]:
    """The tensors in the order of the files' data, in which writing them is sequential."""
    yield from sorted(stored := stored_in(files), key=lambda name: (stored[name].file, stored[name].begin))
