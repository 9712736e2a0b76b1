"""The weights an engine serves, and the versions staged to follow them.

    served --stage delta on the newest--> staged ... --commit--> served        a snapshot may be staged on anything

The checkpoint's own bits stay in host memory beside the model (which may compute in another dtype): they are the base
of every delta and the truth of a rollback. Commit is all or nothing: each write leaves an undo on a stack that runs
backward unless everything, the read-back of each touched element included, has succeeded.

Threads: `stage` may run beside anything; commit, audit and the model itself belong to one thread. A running stage
never reads an array that a commit writes: with nothing staged there is nothing to commit, and with something staged it
works on copies of the tensors that this changed. Only a delta that replaces the queue can meet a commit of that queue;
it then fails on its digest or its base, never silently.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from aurora_p2p.delta import apply
from aurora_p2p.delta.block import Change
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import Bits, layout_id
from aurora_p2p.engine.model import (
    TIED,
    build_model,
    check_table,
    dtype_of,
    load_bits,
    parameters_of,
    require_memory,
    tensor_bits,
    typed,
)
from aurora_p2p.errors import CheckpointError, DigestMismatch, StoreError
from aurora_p2p.types import StateDigest, TensorSpec, Version
from aurora_p2p.wire.manifest import Header, ModelConfig

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Pending:
    """A verified version that is not served yet: the changes of a delta, or the whole of a snapshot."""

    version: Version
    digest: StateDigest
    content: apply.Staged | dict[str, Bits]
    changed: int


class Weights:
    """One loaded model. `version` and `digest` are of what it computes with now."""

    def __init__(self, header: Header, config: ModelConfig, specs: Sequence[TensorSpec]) -> None:
        self.config, self.specs, self._layout = config, tuple(specs), header.layout
        self.version, self.digest = header.version, StateDigest(b"")
        self.model: nn.Module
        self._parameters: dict[str, nn.Parameter]
        self._bits: dict[str, Bits]
        self._pending: list[Pending] = []
        self._lock = threading.Lock()

    @classmethod
    def load(cls, header: Header, body: Path, digest: StateDigest, device: str) -> Weights:
        """Build and fill the model of a snapshot; its digest is recomputed from the model's own memory."""
        config, specs = table_of(header)
        elements = sum(spec.elements for spec in specs)
        require_memory(sum(spec.nbytes for spec in specs) + 4 * elements, f"a model of {elements:,} parameters")
        weights = cls(header, config, specs)
        weights._bits = read_snapshot(specs, read_chunks(body), digest)
        dtype = torch.float32 if device == "cpu" else dtype_of(specs[0])
        weights.model = build_model(config, dtype, initialize=False).to(device)
        weights._parameters = parameters_of(weights.model, specs)
        load_bits(weights.model, specs, weights._bits)
        weights.digest = digest
        weights.audit()
        return weights

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
            queue = self._queue_before(header)
            base = self._after(queue)
        base_digest = StateDigest(header.base_digest)
        staged = apply.stage(self.specs, read_chunks(body), base, base_digest, digest)
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
        """Raises DigestMismatch when the model's memory is not what it should be."""
        self._require_digest(self.digest)

    def _require_digest(self, expected: StateDigest) -> None:
        memory = RunningDigest(EMPTY)
        for spec in self.specs:
            memory.extend(spec, 0, tensor_bits(self._parameters[spec.name].detach().to(dtype_of(spec))))
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
            undo.callback(self._replace, self._bits)
            self._replace(step.content)
            self._require_digest(step.digest)
            return
        apply.write(step.content, self._bits, self.specs)
        undo.callback(apply.undo, step.content, self._bits, self.specs)
        for change in step.content.changes:
            self._write_change(change, undo)

    def _write_change(self, change: Change, undo: ExitStack) -> None:
        spec = self.specs[change.tensor]
        flat = self._parameters[spec.name].detach().view(-1)
        index = torch.from_numpy(change.positions).to(flat.device)
        undo.callback(flat.index_copy_, 0, index, flat[index])
        flat.index_copy_(0, index, typed(change.new, spec.dtype).to(flat.device, flat.dtype))
        if not np.array_equal(tensor_bits(flat[index].to(dtype_of(spec))), change.new):
            raise DigestMismatch(f"{spec.name} does not hold what was written to it")

    def _replace(self, bits: dict[str, Bits]) -> None:
        load_bits(self.model, self.specs, bits)
        self._bits = bits


def table_of(header: Header) -> tuple[ModelConfig, list[TensorSpec]]:
    """Configuration and stored tensors of a snapshot's header. Raises CheckpointError when they do not fit together."""
    config = header.model
    if header.kind != "snapshot" or config is None:
        raise CheckpointError("only a snapshot that carries its model configuration can be loaded")
    specs = [entry.spec for entry in header.tensors if entry.op == "full"]
    aliases = {entry.spec.name: entry.alias_of for entry in header.tensors if entry.op == "alias"}
    if len(specs) + len(aliases) != len(header.tensors):
        raise CheckpointError("a snapshot's tensors are full or aliases")
    if aliases and (not config.tie_word_embeddings or aliases != dict([TIED])):
        raise CheckpointError(f"{sorted(aliases)[0]} cannot be an alias in this model")
    check_table(config, specs)
    if layout_id(specs, aliases) != header.layout:
        raise CheckpointError("the tensor table is not the one that the header's layout names")
    return config, specs


def read_chunks(body: Path) -> Iterator[bytes]:
    """A body file in pieces. Raises StoreError when it cannot be read."""
    try:
        with body.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise StoreError(f"cannot read {body}: {error.strerror}") from error
