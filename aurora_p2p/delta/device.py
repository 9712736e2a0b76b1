"""The codec where the tensors are: extraction, digest and apply as torch operations on any device.

Bit-identical to the CPU path: the same bytes, the same changes, the same digest. A tensor leaves its device only as its
changed elements (rank, class, step) or, in blocks that travel whole, as the bytes of the artifact. Tensors are taken as
integers of their item's size; the work on one block needs at most DEVICE_BYTES beside them, on the device.

No Triton kernels: torch's own operations are all there is, so that every device torch knows can do it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from aurora_p2p.delta import gaps
from aurora_p2p.delta.block import CLASSES, ULP, Change, RawBlock, check_block, frame
from aurora_p2p.delta.classes.block import Listed, decode_listed, encode_listed, scaled_sizes
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap
from aurora_p2p.delta.coding import cheapest, decode_block
from aurora_p2p.delta.digest import LANES, ROW, keys, weights
from aurora_p2p.delta.tensors import Bits, blocks, tensor_id
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import TensorSpec

DEVICE_BYTES = 32 << 20
"""A block of 2**19 elements as int32, its class bytes, classes, one class's counts and an index of it: 30 MiB."""
DIGEST_ELEMENTS = 1 << 21
"""Elements widened to int64 at a time, four products of them summed: 32 MiB."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def integers(tensor: Tensor) -> Tensor:
    """The flat bit patterns of a contiguous tensor, sharing its memory. Raises ShapeError when it is not contiguous."""
    if not tensor.is_contiguous():
        raise ShapeError("only a contiguous tensor has flat bits")
    return tensor.detach().reshape(-1).view(INTEGERS[tensor.element_size()])


def digest_lanes(spec: TensorSpec, bits: Tensor) -> list[int]:
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
    return [int(lane) for lane in lanes.cpu()]


# ---- encoding


def encode_tensor(
    tensor: int, base: Tensor, new: Tensor, classes: ClassMap = ONE_CLASS
) -> Iterator[tuple[bytes, Change]]:
    """`coding.encode_block` for every block of a tensor. base, new: `integers` of the same tensor, on one device."""
    if base.shape != new.shape or base.dtype != new.dtype or base.device != new.device:
        raise ShapeError(f"{base.dtype}{list(base.shape)} cannot become {new.dtype}{list(new.shape)}")
    for offset, length in blocks(base.numel()):
        yield _encode_block(tensor, offset, base[offset : offset + length], new[offset : offset + length], classes)


def _encode_block(tensor: int, offset: int, base: Tensor, new: Tensor, classes: ClassMap) -> tuple[bytes, Change]:
    where = torch.nonzero(base != new).reshape(-1)
    change = Change(tensor, where.cpu().numpy() + offset, _numpy(base[where]), _numpy(new[where]))
    if not where.numel():
        return b"", change
    inside = change.positions - offset
    if base.element_size() == 2:
        mode, payload = CLASSES, _class_payload(where, base, change, classes)
    else:
        mode, payload = ULP, gaps.encode(inside, change.old, change.new, ulp=True)
    mode, payload = cheapest(mode, payload, change, offset, lambda: _numpy(new), new.numel() * new.element_size())
    return frame(RawBlock(tensor, offset, new.numel(), mode, payload)), change


def _class_payload(where: Tensor, base: Tensor, change: Change, classes: ClassMap) -> bytes:
    group = _classes_of(base, classes)
    mine = group[where]
    ranks = torch.zeros_like(where)
    for number in range(classes.classes):
        here = mine == number
        if bool(here.any()):
            ranks[here] = torch.cumsum(group == number, dim=0, dtype=torch.int32)[where[here]].to(torch.int64) - 1
    steps = _key(change.new) - _key(change.old)
    byte = (change.old >> np.uint16(7)) & np.uint16(0xFF)
    listed = [array.astype(np.uint64) for array in (ranks.cpu().numpy(), mine.cpu().numpy(), steps, byte)]
    return encode_listed(listed[0], listed[1], listed[2], listed[3], classes)


def _classes_of(bits: Tensor, classes: ClassMap) -> Tensor:
    """uint8[n]: the class of each element of an int16 tensor."""
    byte = ((bits >> 7) & 0xFF).to(torch.uint8)
    group = torch.zeros_like(byte)
    for floor in classes.thresholds:
        group += byte >= floor
    return group


# ---- decoding and applying


def decode_on(block: RawBlock, spec: TensorSpec, base: Tensor, classes: ClassMap = ONE_CLASS) -> Change:
    """`coding.decode_block` against a base on its device. base: `integers` of the whole tensor, never written.

    Raises WireError, ShapeError.
    """
    check_block(block, spec)
    if base.numel() != spec.elements:
        raise ShapeError(f"the base of {spec.name!r} has {base.numel()} elements")
    if block.mode != CLASSES or base.element_size() != 2:
        return _decode_rest(block, spec, base, classes)
    before = base[block.offset : block.offset + block.length]
    listed = decode_listed(block.payload, block.length, classes)
    group = _classes_of(before, classes)
    places = [_places(group, one) for one in listed]
    old = [_numpy(before[place]) for place in places]
    bytes_of = {
        one.group: ((bits >> np.uint16(7)) & np.uint16(0xFF)).astype(np.uint64)
        for one, bits in zip(listed, old, strict=True)
        if one.scale >= 0
    }
    sizes = scaled_sizes(block.payload, listed, bytes_of)
    steps = [one.steps * sizes[one.group] if one.scale >= 0 else one.steps for one in listed]
    new = [_key(_key(bits) + step.astype(np.uint16)) for bits, step in zip(old, steps, strict=True)]
    if not listed:
        return Change(block.tensor, np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, np.uint16))
    where = np.concatenate([place.cpu().numpy() for place in places]) + block.offset
    return Change(block.tensor, where, np.concatenate(old), np.concatenate(new))


def _places(group: Tensor, listed: Listed) -> Tensor:
    """Where in the block the elements of these ranks in their class are. group: each element's. Raises WireError."""
    members = torch.nonzero(group == listed.group).reshape(-1)
    if int(listed.ranks[-1]) >= members.numel():
        raise WireError("a class block does not fit its base")
    return members[torch.from_numpy(listed.ranks).to(group.device)]


def _decode_rest(block: RawBlock, spec: TensorSpec, base: Tensor, classes: ClassMap) -> Change:
    """The modes that are rare: one block of the base comes to the CPU."""
    span = slice(block.offset, block.offset + block.length)
    alone = RawBlock(block.tensor, 0, block.length, block.mode, block.payload)
    part = TensorSpec(spec.name, spec.dtype, (block.length,))
    change = decode_block(alone, part, _numpy(base[span]), classes)
    return Change(block.tensor, change.positions + block.offset, change.old, change.new)


def write_on(change: Change, bits: Tensor) -> bool:
    """Write a change into a tensor on its device; False, and nothing written, when an element is not the base's."""
    where = torch.from_numpy(change.positions).to(bits.device)
    old, new = (torch.from_numpy(_signed(one)).to(bits.device) for one in (change.old, change.new))
    if not torch.equal(bits[where], old):
        return False
    bits.index_copy_(0, where, new)
    return True


def undo_on(change: Change, bits: Tensor) -> None:
    """Put the old bits back."""
    where = torch.from_numpy(change.positions).to(bits.device)
    bits.index_copy_(0, where, torch.from_numpy(_signed(change.old)).to(bits.device))


def _numpy(bits: Tensor) -> Bits:
    array: Bits = bits.cpu().numpy()
    return array.view(np.dtype(f"u{array.itemsize}"))


def _signed(bits: Bits) -> Bits:
    return bits if bits.itemsize == 1 else bits.view(np.dtype(f"i{bits.itemsize}"))


def _key(bits: Bits) -> Bits:
    return bits ^ ((bits >> np.uint16(15)) * np.uint16(0x7FFF))
