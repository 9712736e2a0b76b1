"""States of a checkpoint that can be read piece by piece, and how the table changes from one to the next. Pure.

A State is wherever weights are: arrays, files (tensorfiles.py), or another state with a delta over it (layers.py). It
is never held whole.

    entry op   new table has it    blocks        base needed
    delta      yes                 changes       a tensor of this name, dtype and shape; tied or not
    full       yes                 every element none: the tensor is new, or its dtype or shape changed
    alias      yes                 none          none: same bits as the tensor it names, which is stored
    deleted    no                  none          none

Entries are sorted by name; a block names its tensor by the number of its entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.tensors import Bits, bits_dtype, layout_id
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import TensorEntry


@dataclass(frozen=True)
class Table:
    """The tensors of one state: those stored, sorted by name, and the tied names of some of them."""

    specs: tuple[TensorSpec, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def stored(self) -> Mapping[str, TensorSpec]:
        """Stored tensors by name."""
        return {spec.name: spec for spec in self.specs}

    @cached_property
    def layout(self) -> bytes:
        """Raises WireError for a table that is not well formed."""
        return layout_id(self.specs, self.aliases)

    @property
    def names(self) -> list[str]:
        """Every name, tied ones included, sorted."""
        return sorted([*self.stored, *self.aliases])

    def find(self, name: str) -> TensorSpec | None:
        """The stored tensor behind a name."""
        return self.stored.get(self.aliases.get(name, name))

    def spec_of(self, name: str) -> TensorSpec | None:
        """The tensor as that name describes it."""
        found = self.find(name)
        return found and TensorSpec(name, found.dtype, found.shape)


class State(Protocol):
    """Weights that can be read. `read` may be called from several threads."""

    @property
    def table(self) -> Table: ...

    def read(self, name: str, offset: int, length: int) -> Bits:
        """Elements of the tensor behind a name, as Bits that are the caller's own.

        Raises CheckpointError when they cannot be read, WireError when a delta on the way is damaged.
        """
        ...


class Arrays:
    """A state in memory, of arrays of any layout."""

    def __init__(self, table: Table, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """arrays: by stored name, of the spec's shape or flat, contiguous or not. Raises ShapeError."""
        self.table = table
        self._bits = {spec.name: _flat(spec, arrays[spec.name]) for spec in table.specs}

    def read(self, name: str, offset: int, length: int) -> Bits:
        spec = self.table.find(name)
        if spec is None or offset + length > spec.elements:
            raise ShapeError(f"there is no {name!r} with {offset + length} elements")
        return self._bits[spec.name][offset : offset + length].copy()


def _flat(spec: TensorSpec, array: npt.NDArray[Any]) -> Bits:
    kind = bits_dtype(spec.dtype)
    if array.itemsize != kind.itemsize or array.size != spec.elements or array.shape not in (spec.shape, (array.size,)):
        raise ShapeError(f"{spec.name!r} is {array.dtype}{list(array.shape)}, not {spec.dtype}{list(spec.shape)}")
    bits: Bits = np.ascontiguousarray(array).reshape(-1).view(kind)
    return bits


def compare(base: Table | None, new: Table) -> tuple[TensorEntry, ...]:
    """What becomes of each tensor from one table to the next; base: None for a snapshot."""
    entries = []
    for name in sorted({*(base.names if base else ()), *new.names}):
        before, after = base.spec_of(name) if base else None, new.spec_of(name)
        if after is None:
            assert before is not None  # noqa: S101  # the name is of one of the two
            entries.append(TensorEntry(before, "deleted"))
        elif name in new.aliases:
            entries.append(TensorEntry(after, "alias", new.aliases[name]))
        else:
            entries.append(TensorEntry(after, "delta" if before == after else "full"))
    return tuple(entries)


def table_after(entries: Sequence[TensorEntry]) -> Table:
    """The new table. Raises WireError when the entries are unsorted, repeat a name, or an alias does not fit."""
    if any(first.spec.name >= second.spec.name for first, second in pairwise(entries)):
        raise WireError("the tensor table is not sorted by name, or a name repeats")
    stored = {entry.spec.name: entry.spec for entry in entries if entry.op in ("delta", "full")}
    aliases = {}
    for entry in entries:
        if entry.op == "alias":
            target = stored.get(entry.alias_of)
            if target is None or (target.dtype, target.shape) != (entry.spec.dtype, entry.spec.shape):
                raise WireError(f"{entry.spec.name!r} is tied to {entry.alias_of!r}, which is no such tensor")
            aliases[entry.spec.name] = entry.alias_of
    return Table(tuple(stored.values()), aliases)


def misfit(base: Table, entries: Iterable[TensorEntry]) -> str:
    """Why these entries cannot follow `base`, naming the first tensor in the way; empty when they can."""
    known = set()
    for entry in entries:
        name, found = entry.spec.name, base.spec_of(entry.spec.name)
        known.add(name)
        if found is None and entry.op in ("delta", "deleted"):
            return f"the base lacks the tensor {name!r}"
        if found is not None and entry.op == "delta" and found != entry.spec:
            return f"{name!r} is {_written(found)} in the base, and the delta is for {_written(entry.spec)}"
    more = sorted({*base.names} - known)
    return f"the base has a tensor {more[0]!r} that the delta does not know" if more else ""


def _written(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"
