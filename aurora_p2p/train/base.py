"""What a publisher keeps of the weights it published last, and how new ones are compared with it.

    HostBase      arrays in host memory, compared by kernels; the arrays that were published are the next base
    DeviceBase    tensors, compared where they are (device_base.py); the next base is a copy of its own

Torch-free: a trainer that hands over arrays needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from aurora_p2p.delta.classes.map import ClassMap, learn, sampled
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.errors import CheckpointError
from aurora_p2p.types import DTYPES, StateDigest, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

Checkpoint: TypeAlias = "Mapping[str, Bits] | Mapping[str, Tensor]"
"""Weights by name: all flat bits in host memory, or all tensors, of the spec's dtype and on any device."""
DevicePath: TypeAlias = Literal["auto", "always"]
"""Which weights are compared where they are: tensors that are not in host memory, or whatever comes."""
BaseOn: TypeAlias = Literal["device", "host"]
"""Where a DeviceBase is."""
W = TypeVar("W", contravariant=True)

EXPONENT_MASKS = {
    "BF16": 0x7F80,
    "F16": 0x7C00,
    "F32": 0x7F80_0000,
    "F64": 0x7FF0 << 48,
    "F8_E5M2": 0x7C,
    "F8_E4M3": 0x7F,
}
"""Bits that are all ones exactly in Inf and NaN (F8_E4M3 has one NaN per sign and no Inf)."""


class Encoder(Protocol):
    """An artifact while it is made: delta.encode.DeltaEncoder, delta.device_encode.DeviceEncoder."""

    changed: int
    elements: int

    @property
    def digest(self) -> StateDigest: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...


class Base(Protocol[W]):
    """The weights published last. Every method raises ShapeError for weights that do not fit specs."""

    held: bool
    """Whether there is anything to compare with."""

    @property
    def bytes_off_device(self) -> int:
        """Bytes of tensors that were moved off their device so far."""

    def refuse_non_finite(self, specs: Sequence[TensorSpec], weights: W) -> None:
        """Raise CheckpointError naming the first tensor that holds Inf or NaN: such weights never leave the trainer."""

    def digest(self, specs: Sequence[TensorSpec], weights: W) -> StateDigest:
        """Of all of these weights."""

    def classes(self, specs: Sequence[TensorSpec], weights: W) -> ClassMap:
        """Learned from a sample of what changes from the base to these weights."""

    def snapshot(self, specs: Sequence[TensorSpec], weights: W) -> Encoder: ...

    def delta(self, specs: Sequence[TensorSpec], weights: W, start: StateDigest, classes: ClassMap) -> Encoder: ...

    def keep(self, specs: Sequence[TensorSpec], weights: W, encoder: Encoder | None) -> None:
        """These weights are published: the next base. encoder: what encoded them from the base; None: nothing did."""


class HostBase:
    """Arrays. The ones given to `keep` are kept: hand over ones that nobody writes to."""

    bytes_off_device = 0

    def __init__(self) -> None:
        self.held = False
        self.bits: Mapping[str, Bits] = {}

    def refuse_non_finite(self, specs: Sequence[TensorSpec], weights: Mapping[str, Bits]) -> None:
        refuse_non_finite(specs, weights)

    def digest(self, specs: Sequence[TensorSpec], weights: Mapping[str, Bits]) -> StateDigest:
        return full_digest(specs, weights)

    def classes(self, specs: Sequence[TensorSpec], weights: Mapping[str, Bits]) -> ClassMap:
        halves = [spec.name for spec in specs if DTYPES[spec.dtype] == 2]
        return learn(sampled([(self.bits[name], weights[name]) for name in halves]))

    def snapshot(self, specs: Sequence[TensorSpec], weights: Mapping[str, Bits]) -> Encoder:
        return encode_snapshot(specs, weights)

    def delta(
        self, specs: Sequence[TensorSpec], weights: Mapping[str, Bits], start: StateDigest, classes: ClassMap
    ) -> Encoder:
        return encode_delta(specs, self.bits, weights, start, classes)

    def keep(self, specs: Sequence[TensorSpec], weights: Mapping[str, Bits], encoder: Encoder | None) -> None:
        self.bits, self.held = weights, True


def base_for(
    current: Base[Any], weights: Checkpoint, device_path: DevicePath, base_on: BaseOn
) -> tuple[Base[Any], Mapping[str, Any]]:
    """The base to compare these weights with, and the weights in its terms.

    Tensors on the CPU are copied to arrays, unless device_path is "always". A base of arrays goes on as one of tensors;
    the other way round there is nothing held.
    """
    arrays = all(isinstance(one, np.ndarray) for one in weights.values())
    if arrays and device_path == "auto":
        return current if isinstance(current, HostBase) else HostBase(), weights
    from aurora_p2p.train import device_base

    tensors = device_base.as_tensors(weights)
    if device_path == "auto" and all(tensor.device.type == "cpu" for tensor in tensors.values()):
        return current if isinstance(current, HostBase) else HostBase(), device_base.copies(tensors)
    if isinstance(current, HostBase):
        return device_base.DeviceBase(base_on, current.bits), tensors
    return current, tensors


def refuse_non_finite(specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> None:
    """`Base.refuse_non_finite` for arrays."""
    for spec in specs:
        mask = EXPONENT_MASKS.get(spec.dtype)
        if mask is None:
            continue
        flat = bits[spec.name]
        if np.any((flat & flat.dtype.type(mask)) == flat.dtype.type(mask)):
            raise not_finite(spec)


def not_finite(spec: TensorSpec) -> CheckpointError:
    return CheckpointError(
        f"tensor {spec.name} holds a value that is not finite; nothing was published",
        hint="lower the learning rate, or go back to an earlier checkpoint",
    )
