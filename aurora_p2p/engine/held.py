"""The checkpoint an engine holds, and the versions staged to follow it. Imports no torch.

    served --stage delta on the newest--> staged ... --commit--> served        a snapshot may be staged on anything

The checkpoint's own bits stay in host memory: they are the base of every delta and the truth of a rollback. An engine
that computes with something made from them (weights.py: a model) overrides what is written, replaced and read back; one
whose device holds those bits themselves (resident.py) also what is decoded against.
Commit is all or nothing: each write leaves an undo on a stack that runs backward unless everything, the read-back of
each touched element included, has succeeded.

Threads: `stage` may run beside anything; commit and audit belong to one thread. A running stage never reads an array
that a commit writes: with nothing staged there is nothing to commit, and with something staged it works on copies of
the tensors that this changed. Only a delta that replaces the queue can meet a commit of that queue; it then fails on
its digest or its base, never silently.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aurora_p2p.delta import apply
from aurora_p2p.delta.block import Change
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.tables import read_chunks, require_memory, table_of
from aurora_p2p.errors import CheckpointError, DigestMismatch
from aurora_p2p.local.faults import reach
from aurora_p2p.types import StateDigest, TensorSpec, Version
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header, ModelConfig


@dataclass(frozen=True, slots=True)
class Pending:
    """A verified version that is not served yet: the changes of a delta, or the whole of a snapshot."""

    version: Version
    digest: StateDigest
    content: apply.Staged | dict[str, Bits]
    changed: int


class HeldWeights:
    """One loaded checkpoint. `version` and `digest` are of what is served now."""

    def __init__(self, header: Header, config: ModelConfig, specs: Sequence[TensorSpec], bits: dict[str, Bits]) -> None:
        self.config, self.specs, self._layout = config, tuple(specs), header.layout
        self.version, self.digest = header.version, StateDigest(b"")
        self._bits = bits
        self._pending: list[Pending] = []
        self._lock = threading.Lock()

    @classmethod
    def read(cls, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source] = ()) -> HeldWeights:
        """The bits of a snapshot and its deltas alone; audited.

        Raises CheckpointError, DigestMismatch, WireError, StoreError.
        """
        config, specs = table_of(header)
        require_memory(sum(spec.nbytes for spec in specs), "holding a whole checkpoint")
        held = cls(header, config, specs, read_snapshot(specs, read_chunks(body), digest))
        held.digest = digest
        held.advance(deltas)
        held.audit()
        return held

    def advance(self, deltas: Sequence[Source]) -> None:
        """Apply deltas to the bits, one after the other, where they are: for weights that nobody computes with yet.

        Each is proven before it is written, as `stage` does. Memory: 12 bytes for each change of the largest. Raises
        like `read`; the weights are then good for nothing.
        """
        for delta in deltas:
            header = delta.header
            self._check_layout(header)
            self._queue_before(header)
            classes = ClassMap(header.class_map)
            staged = apply.stage(
                self.specs, read_chunks(Path(delta.body)), self._bits, self.digest, delta.digest, classes
            )
            apply.write(staged, self._bits, self.specs)
            self.version, self.digest = header.version, delta.digest

    @property
    def elements(self) -> int:
        return sum(spec.elements for spec in self.specs)

    def stage(self, header: Header, body: Path, digest: StateDigest) -> Pending:
        """Decode an artifact and queue it. A delta on the served version, or a snapshot, replaces what was queued."""
        self._check_layout(header)
        if header.kind == "snapshot":
            require_memory(sum(spec.nbytes for spec in self.specs), "staging a whole checkpoint")
            bits = read_snapshot(self.specs, read_chunks(body), digest)
            pending = Pending(header.version, digest, bits, self.elements)
            with self._lock:
                self._pending = [pending]
            return pending
        with self._lock:
            decode = self._decoder(self._queue_before(header), ClassMap(header.class_map))
        staged = apply.stage_with(decode, self.specs, read_chunks(body), StateDigest(header.base_digest), digest)
        pending = Pending(header.version, digest, staged, staged.changed)
        with self._lock:
            self._pending = [*self._queue_before(header), pending]
        return pending

    def commit(self, version: Version, *, audit: bool) -> int:
        """Serve `version`. Returns the elements written. On any error everything is as it was."""
        with self._lock:
            count = next((i for i, one in enumerate(self._pending, 1) if one.version == version), 0)
            if not count:
                raise CheckpointError(f"version {version} is not staged; version {self.version} is served")
            steps, newest = self._pending[:count], self._pending[count - 1]
            with ExitStack() as undo:
                for step in steps:
                    self._write(step, undo)
                if audit:
                    self._require_digest(newest.digest)
                undo.pop_all()
            self._pending = self._pending[count:]
            self.version, self.digest = newest.version, newest.digest
        return sum(step.changed for step in steps)

    def audit(self) -> None:
        """Raises DigestMismatch when the memory served from is not what it should be."""
        self._require_digest(self.digest)

    def _require_digest(self, expected: StateDigest) -> None:
        memory = RunningDigest(EMPTY)
        for spec in self.specs:
            self._add_served(memory, spec)
        found = memory.value()
        if found != expected:
            raise DigestMismatch(f"the weights in memory have digest {found.hex()[:16]}, not {expected.hex()[:16]}")

    def _check_layout(self, header: Header) -> None:
        if header.layout != self._layout:
            raise CheckpointError("the artifact's tensor table is not that of the loaded model; load its snapshot")
        if header.model is not None and header.model != self.config:
            raise CheckpointError("the artifact's model configuration is not that of the loaded model")

    def _queue_before(self, header: Header) -> list[Pending]:
        """The queue that a delta continues. Raises DigestMismatch when it fits neither the newest nor the served."""
        named = (header.base_version, StateDigest(header.base_digest))
        if self._pending and named == (self._pending[-1].version, self._pending[-1].digest):
            return self._pending
        if named == (self.version, self.digest):
            return []
        newest = self._pending[-1].version if self._pending else self.version
        raise DigestMismatch(f"the delta's base is version {header.base_version}; version {newest} is held")

    def _after(self, queue: Sequence[Pending]) -> Mapping[str, Bits]:
        """The checkpoint as it will be after `queue`; tensors that it changes are copies."""
        bits = dict(self._bits)
        for step in queue:
            if isinstance(step.content, dict):
                bits = dict(step.content)
                continue
            for name in {self.specs[change.tensor].name for change in step.content.changes}:
                bits[name] = bits[name].copy()
            apply.write(step.content, bits, self.specs)
        return bits

    def _write(self, step: Pending, undo: ExitStack) -> None:
        if isinstance(step.content, dict):
            self._write_whole(step.content, undo)
            self._require_digest(step.digest)
        else:
            self._write_delta(step.content, undo)

    # ---- what an engine without bits in host memory overrides

    def _decoder(self, queue: Sequence[Pending], classes: ClassMap) -> apply.Decode:
        """Decodes against the checkpoint as it will be after `queue`."""
        return apply.decoder(self.specs, self._after(queue), classes)

    def _write_delta(self, staged: apply.Staged, undo: ExitStack) -> None:
        """Write all changes, each with its undo pushed before, and prove them. Raises DigestMismatch."""
        apply.write(staged, self._bits, self.specs)
        undo.callback(apply.undo, staged, self._bits, self.specs)
        for change in staged.changes:
            reach("engine.committing")
            self._write_change(change, undo)

    def _write_whole(self, bits: dict[str, Bits], undo: ExitStack) -> None:
        """Write a whole checkpoint, its undo pushed before."""
        undo.callback(self._replace, self._bits)
        self._replace(bits)

    def _add_served(self, memory: RunningDigest, spec: TensorSpec) -> None:
        """Add one tensor, as it is served, to a digest."""
        memory.extend(spec, 0, self._served_bits(spec))

    # ---- what an engine with something beside the bits overrides

    def _served_bits(self, spec: TensorSpec) -> Bits:
        """The bits of one tensor as they are served."""
        return self._bits[spec.name]

    def _write_change(self, change: Change, undo: ExitStack) -> None:
        """Take one tensor's change, already in the bits, to what is served; push its undo before writing."""

    def _replace(self, bits: dict[str, Bits]) -> None:
        """Serve a whole new checkpoint."""
        self._bits = bits
