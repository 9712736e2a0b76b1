"""The weights of an engine on a CPU: a float32 model beside the checkpoint's own bits (held.py).

What the model's memory holds is what is served: an audit reads it back, a commit writes both and proves each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import nn

from aurora_p2p.delta.block import Change
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.held import HeldWeights
from aurora_p2p.engine.model import build_model, dtype_of, load_bits, parameters_of, tensor_bits, typed
from aurora_p2p.engine.tables import read_chunks, require_memory, table_of
from aurora_p2p.errors import DigestMismatch
from aurora_p2p.types import StateDigest, TensorSpec
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header


class Weights(HeldWeights):
    """One loaded model. `version` and `digest` are of what it computes with now."""

    model: nn.Module
    _parameters: dict[str, nn.Parameter]

    @classmethod
    def load(cls, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source] = ()) -> Weights:
        """Build and fill the model of a snapshot and its deltas; the digest is recomputed from the model's own memory.

        The deltas go into the checkpoint's bits, and the model is filled once.
        """
        config, specs = table_of(header)
        elements = sum(spec.elements for spec in specs)
        require_memory(sum(spec.nbytes for spec in specs) + 4 * elements, f"a model of {elements:,} parameters")
        weights = cls(header, config, specs, read_snapshot(specs, read_chunks(body), digest))
        weights.digest = digest
        weights.advance(deltas)
        weights.model = build_model(config, torch.float32, initialize=False)
        weights._parameters = parameters_of(weights.model, specs)
        load_bits(weights.model, specs, weights._bits)
        weights.audit()
        return weights

    def _served_bits(self, spec: TensorSpec) -> Bits:
        return tensor_bits(self._parameters[spec.name].detach().to(dtype_of(spec)))

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
