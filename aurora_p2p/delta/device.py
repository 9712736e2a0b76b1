"""The codec where the tensors are: digests, decoding and applying as torch operations on any device.

Bit-identical to the CPU path: the same bytes, the same changes, the same digest. Tensors are taken as integers of their
item's size (`integers`, `flat_bits`). What leaves a device passes `Crossing.off`, which counts it: changed elements and
numbers about them, and blocks that travel whole. device_encode.py is the publisher's half.

Memory beside the tensors, on the device: DEVICE_BYTES.

No Triton kernels: torch's own operations are all there is, so that every device torch knows can do it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aurora_p2p.delta.block import CLASSES, Change, RawBlock, check_block
from aurora_p2p.delta.classes.block import decode_listed, scaled_sizes
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap
from aurora_p2p.delta.coding import decode_block
from aurora_p2p.delta.digest import LANES, ROW, keys, weights
from aurora_p2p.delta.tensors import Bits, tensor_id
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import DTYPES, TensorSpec

DEVICE_BYTES = 192 << 20
"""No operation here or in device_encode.py takes more beside the tensors. The most is what encoding eight blocks takes
in which everything changed (168 MiB measured); where one element in a hundred did, it is 57."""
DIGEST_ELEMENTS = 1 << 21
"""Elements widened to int64 at a time, four products of them summed: 48 MiB measured."""
WRITE_CHANGES = 1 << 21
"""Changes written at a time: 56 MiB for the places as they come and as int64, 16-bit values, and what is found."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Crossing:
    """The one way off a device. bytes_off_device: what has taken it, sizes of results aside."""

    def __init__(self) -> None:
        self.bytes_off_device = 0

    def off(self, tensor: Tensor) -> npt.NDArray[Any]:
        """The tensor's elements in host memory; of a tensor on the CPU, its own memory."""
        self.bytes_off_device += tensor.numel() * tensor.element_size()
        return tensor.detach().cpu().numpy()

    def bits(self, tensor: Tensor) -> Bits:
        """The same for `integers`, as Bits."""
        array: Bits = self.off(tensor)
        return array.view(np.dtype(f"u{array.itemsize}"))

    def true(self, condition: Tensor) -> bool:
        """A condition of one element."""
        return bool(self.off(condition))


def integers(tensor: Tensor) -> Tensor:
    """The flat bit patterns of a contiguous tensor, sharing its memory. Raises ShapeError when it is not contiguous."""
    if not tensor.is_contiguous():
        raise ShapeError("only a contiguous tensor has flat bits")
    return tensor.detach().reshape(-1).view(INTEGERS[tensor.element_size()])


def flat_bits(spec: TensorSpec, tensors: Mapping[str, Tensor]) -> Tensor:
    """`tensors.bits_of` for tensors: `integers` of the one that the spec names, made contiguous where it is not.

    Raises ShapeError when it is absent or is not what the spec says.
    """
    tensor = tensors.get(spec.name)
    if tensor is None:
        raise ShapeError(f"the checkpoint lacks the tensor {spec.name!r}")
    if tensor.numel() != spec.elements or tensor.element_size() != DTYPES[spec.dtype]:
        raise ShapeError(
            f"{spec.name!r} is {tensor.dtype}{list(tensor.shape)}, not {spec.elements} elements of {spec.dtype}"
        )
    return integers(tensor.detach().contiguous())


def digest_lanes(spec: TensorSpec, bits: Tensor, crossing: Crossing | None = None) -> list[int]:
    """What all elements of a tensor add to the state digest's lanes; for RunningDigest.add_lanes. bits: `integers`."""
    if bits.element_size() == 8:
        bits = bits.view(torch.int32)
    lanes = torch.zeros(LANES, dtype=torch.int64, device=bits.device)
    table = torch.from_numpy(keys().astype(np.int64)).to(bits.device)
    mask = (1 << 8 * bits.element_size()) - 1
    for start in range(0, bits.numel(), DIGEST_ELEMENTS):
        part = bits[start : start + DIGEST_ELEMENTS].to(torch.int64) & mask
        rows = -(-part.numel() // ROW)
        part = torch.nn.functional.pad(part, (0, rows * ROW - part.numel())).view(rows, ROW)
        numbers = np.arange(start // ROW, start // ROW + rows, dtype=np.uint64)
        weight = torch.from_numpy(weights(tensor_id(spec), numbers).view(np.int64)).to(bits.device)
        for lane in range(LANES):
            lanes[lane] += ((part * table[lane]).sum(dim=1) * weight[lane]).sum()
    return [int(lane) for lane in (crossing or Crossing()).off(lanes)]


def classes_of(bits: Tensor, classes: ClassMap) -> Tensor:
    """uint8[n]: the class of each element of an int16 tensor."""
    byte = ((bits >> 7) & 0xFF).to(torch.uint8)
    group = torch.zeros_like(byte)
    for floor in classes.thresholds:
        group += byte >= floor
    return group


# ---- decoding


def decode_on(
    block: RawBlock,
    spec: TensorSpec,
    before: Tensor,
    classes: ClassMap = ONE_CLASS,
    crossing: Crossing | None = None,
) -> Change:
    """`coding.decode_block` against a base on its device; the changes come in the order of their classes.

    before: `integers` of the block's own elements, never written. Raises WireError, ShapeError.
    """
    check_block(block, spec)
    if before.numel() != block.length or before.element_size() != DTYPES[spec.dtype]:
        raise ShapeError(f"the base of a block of {spec.name!r} has {before.numel()} elements of {before.dtype}")
    crossing = crossing or Crossing()
    if block.mode == CLASSES and before.element_size() == 2:
        return _decode_classes(block, before, classes, crossing)
    alone = RawBlock(block.tensor, 0, block.length, block.mode, block.payload)
    part = TensorSpec(spec.name, spec.dtype, (block.length,))
    change = decode_block(alone, part, crossing.bits(before), classes)  # modes that are rare: the block's base crosses
    return Change(block.tensor, change.positions + block.offset, change.old, change.new)


def _decode_classes(block: RawBlock, before: Tensor, classes: ClassMap, crossing: Crossing) -> Change:
    listed = decode_listed(block.payload, block.length, classes)
    if not listed:
        return Change(block.tensor, np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.uint16))
    groups = np.repeat([one.group for one in listed], [one.ranks.size for one in listed])
    ranks = np.concatenate([one.ranks for one in listed])
    where, old = _placed(before, classes_of(before, classes), groups, ranks, crossing)
    ends = np.cumsum([one.ranks.size for one in listed])[:-1]
    old_of = dict(zip((one.group for one in listed), np.split(old, ends), strict=True))
    bytes_of = {
        one.group: ((old_of[one.group] >> np.uint16(7)) & np.uint16(0xFF)).astype(np.uint64)
        for one in listed
        if one.scale >= 0
    }
    sizes = scaled_sizes(block.payload, listed, bytes_of)
    steps = np.concatenate([one.steps * sizes[one.group] if one.scale >= 0 else one.steps for one in listed])
    return Change(block.tensor, where + block.offset, old, key(key(old) + steps.astype(np.uint16)))


def _placed(
    before: Tensor, group: Tensor, groups: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64], crossing: Crossing
) -> tuple[npt.NDArray[np.int64], Bits]:
    """(int64[n] places in the block, old bits) of the elements of these ranks in their classes. Raises WireError.

    A stable sort lists the elements class by class, each class in ascending order.
    """
    order = torch.sort(group, stable=True).indices
    sizes = torch.bincount(group, minlength=256)
    starts = torch.cumsum(sizes, dim=0) - sizes
    mine, rank = (torch.from_numpy(one).to(before.device) for one in (groups, ranks))
    if crossing.true((rank >= sizes[mine]).any()):
        raise WireError("a class block does not fit its base")
    where = order[starts[mine] + rank]
    return crossing.off(where.to(torch.int32)).astype(np.int64), crossing.bits(before[where])


# ---- applying


def batches(changes: Iterable[Change]) -> Iterator[Change]:
    """The same changes in fewer pieces: of one tensor each, at most WRITE_CHANGES or what one Change brings."""
    run: list[Change] = []
    for change in changes:
        same = not run or run[0].tensor == change.tensor
        if not same or sum(one.positions.size for one in run) + change.positions.size > WRITE_CHANGES:
            yield _joined(run)
            run = []
        run.append(change)
    if run:
        yield _joined(run)


def _joined(run: list[Change]) -> Change:
    if len(run) == 1:
        return run[0]
    places, old, new = ([getattr(one, name) for one in run] for name in ("positions", "old", "new"))
    return Change(run[0].tensor, np.concatenate(places), np.concatenate(old), np.concatenate(new))


class Placed:
    """A change on the device of its tensor, while it is written: the places travel there once."""

    def __init__(self, change: Change, bits: Tensor, crossing: Crossing) -> None:
        """bits: `integers` of the whole tensor."""
        self._change, self._bits, self._crossing = change, bits, crossing
        self._where = _places(change, bits)

    def is_old(self) -> bool:
        """Whether every element is the base's."""
        return self._is(self._change.old)

    def is_new(self) -> bool:
        """Whether every element holds what was written."""
        return self._is(self._change.new)

    def write(self) -> None:
        self._bits.index_copy_(0, self._where, _values(self._change.new, self._bits))

    def _is(self, values: Bits) -> bool:
        return self._crossing.true((self._bits[self._where] == _values(values, self._bits)).all())


def write_on(change: Change, bits: Tensor, crossing: Crossing | None = None) -> bool:
    """Write a change into a tensor on its device; False, and nothing written, when an element is not the base's."""
    placed = Placed(change, bits, crossing or Crossing())
    if not placed.is_old():
        return False
    placed.write()
    return True


def undo_on(change: Change, bits: Tensor) -> None:
    """Put the old bits back."""
    bits.index_copy_(0, _places(change, bits), _values(change.old, bits))


def _places(change: Change, bits: Tensor) -> Tensor:
    """int64[n] on the device; they travel there as int32 from the first on, where they fit."""
    first = int(change.positions.min()) if change.positions.size else 0
    inside = change.positions - first
    if inside.size and int(inside.max()) < 2**31:
        inside = inside.astype(np.int32)
    return torch.from_numpy(inside).to(bits.device).to(torch.int64) + first


def _values(values: Bits, bits: Tensor) -> Tensor:
    signed = values if values.itemsize == 1 else values.view(np.dtype(f"i{values.itemsize}"))
    return torch.from_numpy(signed).to(bits.device)


def key(bits: Bits) -> Bits:
    """Ordered keys of 16-bit floats, and back: it is its own inverse."""
    return bits ^ ((bits >> np.uint16(15)) * np.uint16(0x7FFF))
