"""The weights of an engine whose device holds the checkpoint's own bits: a model in the checkpoint's dtype, no more.

What the model's memory holds is at once the base of the next delta, what is served, and what is audited. Blocks are
decoded against it where it is, changed pairs travel to it, digests are summed on it; a rollback writes back the old
bits of the changes, which the decoder read from it. Whatever leaves the device is counted (`crossing`).

A stage may read memory that a commit is writing: it lays the queued changes over each block that it reads, so it finds
the same bits before, during and after that commit.

    memory beside the model   on the device: delta.device.DEVICE_BYTES
                              on the host: 12 bytes per staged change of 16 bits, as many again while it is committed;
                              a staged snapshot whole, and the old checkpoint whole while that is committed
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from aurora_p2p.delta import apply
from aurora_p2p.delta.block import Change, RawBlock, check_block
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.device import Crossing, Placed, batches, decode_on, digest_lanes, integers, undo_on
from aurora_p2p.delta.digest import RunningDigest
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits
from aurora_p2p.engine.held import HeldWeights, Pending
from aurora_p2p.engine.model import build_model, dtype_of, load_bits, parameters_of
from aurora_p2p.engine.tables import read_chunks, require_memory, table_of
from aurora_p2p.errors import CheckpointError, DigestMismatch
from aurora_p2p.local.faults import reach
from aurora_p2p.types import StateDigest, TensorSpec
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header


class ResidentWeights(HeldWeights):
    """One loaded model. `version` and `digest` are of what it computes with now."""

    model: nn.Module
    crossing: Crossing
    _flat: dict[str, Tensor]
    """`integers` of each parameter: the same memory."""

    @classmethod
    def load(
        cls, header: Header, body: Path, digest: StateDigest, device: str, deltas: Sequence[Source] = ()
    ) -> ResidentWeights:
        """Build and fill the model of a snapshot and its deltas; the digest is recomputed on the device.

        Host memory: the checkpoint twice until the model is on its device.
        """
        config, specs = table_of(header)
        mixed = next((spec for spec in specs if spec.dtype != specs[0].dtype), None)
        if mixed:
            raise CheckpointError(f"{mixed.name} is {mixed.dtype} in a checkpoint of {specs[0].dtype}: use the CPU")
        require_memory(2 * sum(spec.nbytes for spec in specs), "loading a checkpoint")
        weights = cls(header, config, specs, read_snapshot(specs, read_chunks(body), digest))
        weights.digest = digest
        weights.advance(deltas)
        weights.model = build_model(config, dtype_of(specs[0]), initialize=False)
        load_bits(weights.model, specs, weights._bits)
        weights._bits = {}
        weights.model.to(device)
        parameters = parameters_of(weights.model, specs)
        weights._flat = {name: integers(parameter) for name, parameter in parameters.items()}
        weights.crossing = Crossing()
        weights.audit()
        return weights

    def _decoder(self, queue: Sequence[Pending], classes: ClassMap) -> apply.Decode:
        whole: dict[str, Bits] | None = None
        steps: list[apply.Staged] = []
        for pending in queue:
            if isinstance(pending.content, dict):
                whole, steps = pending.content, []
            else:
                steps.append(pending.content)
        overlay = Overlay(steps)

        def decode(block: RawBlock, spec: TensorSpec) -> Change:
            check_block(block, spec)
            span, flat = slice(block.offset, block.offset + block.length), self._flat[spec.name]
            before = flat[span] if whole is None else _on(whole[spec.name][span], flat)
            return decode_on(block, spec, overlay.over(block, before), classes, self.crossing)

        return decode

    def _write_delta(self, staged: apply.Staged, undo: ExitStack) -> None:
        for change in batches(staged.changes):
            reach("engine.committing")
            name = self.specs[change.tensor].name
            placed = Placed(change, self._flat[name], self.crossing)
            if not placed.is_old():
                raise DigestMismatch(f"the weights in {name!r} are not the staged delta's base")
            undo.callback(undo_on, change, self._flat[name])
            placed.write()
            if not placed.is_new():
                raise DigestMismatch(f"{name} does not hold what was written to it")

    def _write_whole(self, bits: dict[str, Bits], undo: ExitStack) -> None:
        require_memory(sum(spec.nbytes for spec in self.specs), "keeping the old checkpoint for a rollback")
        for name, flat in self._flat.items():
            reach("engine.committing")
            old = np.array(self.crossing.bits(flat))
            undo.callback(_fill, flat, old)
            _fill(flat, bits[name])

    def _add_served(self, memory: RunningDigest, spec: TensorSpec) -> None:
        memory.add_lanes(digest_lanes(spec, self._flat[spec.name], self.crossing))


class Overlay:
    """What queued deltas will have written, in their order, laid over blocks of the memory that they go to."""

    def __init__(self, steps: Sequence[apply.Staged]) -> None:
        self._changes = [change for step in steps for change in step.changes]
        self._at: dict[tuple[int, int], list[int]] = {}
        """Which of them touch the elements from number * BLOCK_ELEMENTS on of a tensor; one touches at most two."""
        for index, change in enumerate(self._changes):
            ends = int(change.positions.min()), int(change.positions.max())
            for number in {end // BLOCK_ELEMENTS for end in ends}:
                self._at.setdefault((change.tensor, number), []).append(index)

    def over(self, block: RawBlock, before: Tensor) -> Tensor:
        """before: `integers` of the block's elements, never written. Returns them as they will be."""
        end = block.offset + block.length
        numbers = range(block.offset // BLOCK_ELEMENTS, (end - 1) // BLOCK_ELEMENTS + 1)
        indices = sorted({index for number in numbers for index in self._at.get((block.tensor, number), ())})
        if not indices:
            return before
        after = before.clone()
        for change in (self._changes[index] for index in indices):
            inside = (change.positions >= block.offset) & (change.positions < end)
            places = torch.from_numpy(change.positions[inside] - block.offset).to(after.device)
            after.index_copy_(0, places, _on(change.new[inside], after))
        return after


def _on(bits: Bits, there: Tensor) -> Tensor:
    """The same bits as `integers` on the device of `there`."""
    signed = bits if bits.itemsize == 1 else bits.view(np.dtype(f"i{bits.itemsize}"))
    return torch.from_numpy(signed).to(there.device)


def _fill(flat: Tensor, bits: Bits) -> None:
    flat.copy_(_on(bits, flat))
