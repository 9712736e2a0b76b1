"""The base of tensors that are compared where they are: nothing of them leaves but what changed, or what is sent whole.

    base_on    memory beside the tensors that are published
    device     on the device 2 bytes per bf16 weight, beside the tensor that it is of, and delta.device.DEVICE_BYTES
    host       on the device DEVICE_BYTES; on the host 2 bytes per bf16 weight, and 12 per change until it is published

With the base on the host, each delta carries it to the device chunk by chunk, and weights of a snapshot leave twice.
Tensors are read while they are published, and nothing of them is kept: an optimizer may go on writing to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.device import Crossing, digest_lanes, flat_bits, write_on
from aurora_p2p.delta.device_encode import DeviceEncoder, all_ones, learn_on
from aurora_p2p.delta.digest import EMPTY, RunningDigest
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.model import tensor_bits
from aurora_p2p.train.base import EXPONENT_MASKS, BaseOn, Encoder, not_finite
from aurora_p2p.types import DTYPES, StateDigest, TensorSpec

Tensors: TypeAlias = Mapping[str, Tensor]


class DeviceBase:
    """Tensors on any devices, each compared on its own. What leaves them is counted."""

    def __init__(self, base_on: BaseOn, bits: Mapping[str, Bits]) -> None:
        """bits: the base so far, in host memory; copied."""
        self._base_on, self._crossing = base_on, Crossing()
        self._bits = {name: _tensor(one).clone() for name, one in bits.items()}
        """`integers` by name."""
        self.held = bool(bits)

    @property
    def bytes_off_device(self) -> int:
        return self._crossing.bytes_off_device

    def refuse_non_finite(self, specs: Sequence[TensorSpec], weights: Tensors) -> None:
        for spec in specs:
            flat, mask = flat_bits(spec, weights), EXPONENT_MASKS.get(spec.dtype)
            if mask is not None and all_ones(flat, mask, self._crossing):
                raise not_finite(spec)

    def digest(self, specs: Sequence[TensorSpec], weights: Tensors) -> StateDigest:
        digest = RunningDigest(EMPTY)
        for spec in specs:
            digest.add_lanes(digest_lanes(spec, flat_bits(spec, weights), self._crossing))
        return digest.value()

    def classes(self, specs: Sequence[TensorSpec], weights: Tensors) -> ClassMap:
        halves = [spec for spec in specs if DTYPES[spec.dtype] == 2]
        pairs = ((flat_bits(spec, self._bits), flat_bits(spec, weights)) for spec in halves)
        return learn_on(pairs, sum(spec.elements for spec in halves), self._crossing)

    def snapshot(self, specs: Sequence[TensorSpec], weights: Tensors) -> Encoder:
        return DeviceEncoder(specs, None, weights, EMPTY, crossing=self._crossing)

    def delta(self, specs: Sequence[TensorSpec], weights: Tensors, start: StateDigest, classes: ClassMap) -> Encoder:
        record = self._base_on == "host"
        return DeviceEncoder(specs, self._bits, weights, start, classes, crossing=self._crossing, record=record)

    def keep(self, specs: Sequence[TensorSpec], weights: Tensors, encoder: Encoder | None) -> None:
        if isinstance(encoder, DeviceEncoder) and encoder.changes is not None:
            names = [spec.name for spec in specs]
            self.held = all(write_on(change, self._bits[names[change.tensor]]) for change in encoder.changes)
            return
        self._bits = {spec.name: self._kept(spec, weights) for spec in specs}
        self.held = True

    def _kept(self, spec: TensorSpec, weights: Tensors) -> Tensor:
        """The weights of one tensor where the base belongs, in the memory of the old base where that fits."""
        new, old = flat_bits(spec, weights), self._bits.get(spec.name)
        if self._base_on == "host":
            return _tensor(np.array(self._crossing.bits(new)))
        if old is None or (old.device, old.dtype, old.shape) != (new.device, new.dtype, new.shape):
            return new.clone()
        return old.copy_(new)


class _AsTensors(Mapping[str, Tensor]):
    """Weights of either kind as tensors; each is asked for when it is needed."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Tensor:
        one = self._weights[name]
        tensor: Tensor = _tensor(one) if isinstance(one, np.ndarray) else one
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def as_tensors(weights: Mapping[str, Any]) -> Tensors:
    """The same weights, arrays among them as tensors on the CPU that share their memory."""
    return _AsTensors(weights)


def copies(tensors: Tensors) -> dict[str, Bits]:
    """Flat bits in host memory, the caller's own."""
    return {name: tensor_bits(tensor).copy() for name, tensor in tensors.items()}


def _tensor(bits: Bits) -> Tensor:
    return torch.from_numpy(bits.view(np.dtype("u1" if bits.itemsize == 1 else f"i{bits.itemsize}")))
