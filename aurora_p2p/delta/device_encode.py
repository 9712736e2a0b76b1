"""The publisher's half of the codec on a device: what is finite, how often classes change, the block stream.

Byte-identical to encode.py. Tensors are scanned eight blocks at a time; of those only changed elements leave the device
(place, rank in its class, class, old and new bits: 13 bytes each of 16-bit floats), and blocks for which the whole is
weighed (coding.cheapest: dear or small ones) or sent. Placing ranks is the device's work, entropy coding the CPU's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aurora_p2p.delta import gaps
from aurora_p2p.delta.block import CLASSES, ULP, Change, RawBlock, frame
from aurora_p2p.delta.classes.block import encode_listed
from aurora_p2p.delta.classes.map import ONE_CLASS, SAMPLE_ELEMENTS, ClassMap, best_map
from aurora_p2p.delta.coding import cheapest, encode_whole
from aurora_p2p.delta.device import Crossing, classes_of, flat_bits, key
from aurora_p2p.delta.digest import RunningDigest
from aurora_p2p.delta.hashes import TensorHash, hash_block
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, blocks
from aurora_p2p.errors import ShapeError
from aurora_p2p.types import StateDigest, TensorSpec

CHUNK_BLOCKS = 8
"""Blocks scanned at once: a GPU waits for a launch longer than for one block's megabyte."""
CHUNK_ELEMENTS = CHUNK_BLOCKS * BLOCK_ELEMENTS

Encoded = tuple[bytes, Change]


def all_ones(bits: Tensor, mask: int, crossing: Crossing) -> bool:
    """Whether an element has all the bits of `mask` set. bits: `integers`."""
    chunks = (bits[start : start + CHUNK_ELEMENTS] for start in range(0, bits.numel(), CHUNK_ELEMENTS))
    return any(crossing.true(((chunk & mask) == mask).any()) for chunk in chunks)


def learn_on(pairs: Iterable[tuple[Tensor, Tensor]], elements: int, crossing: Crossing) -> ClassMap:
    """`map.learn(map.sampled(...))` where the tensors are. elements: of all pairs, 16-bit `integers` (base, new)."""
    stride = max(1, elements // SAMPLE_ELEMENTS)
    counts = np.zeros((2, 256), np.int64)
    for base, new in pairs:
        fresh = new[::stride]
        old = base[::stride].to(fresh.device)
        byte = (old >> 7) & 0xFF
        changed = byte[old != fresh]
        counts += crossing.off(torch.stack([torch.bincount(one, minlength=256) for one in (byte, changed)]))
    return best_map(counts[0], counts[1])


class DeviceEncoder(Iterator[bytes]):
    """`encode.DeltaEncoder` for tensors; each is asked for once, when its turn has come.

    changes: with `record`, all that was found: 12 bytes of host memory per changed 16-bit element; None without.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        base: Mapping[str, Tensor] | None,
        new: Mapping[str, Tensor],
        start: StateDigest,
        classes: ClassMap = ONE_CLASS,
        *,
        crossing: Crossing | None = None,
        record: bool = False,
    ) -> None:
        """base: `integers` by name, on any device; None for a snapshot, whose `start` is digest.EMPTY.

        Iterating raises ShapeError when tensors do not fit specs.
        """
        self._specs, self._base, self._new = specs, base, new
        self._digest, self._classes = RunningDigest(start), classes
        self._crossing = crossing or Crossing()
        self._pieces = self._scan()
        self.changes: list[Change] | None = [] if record else None
        self.changed = 0
        self.elements = 0

    @property
    def digest(self) -> StateDigest:
        return self._digest.value()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def _scan(self) -> Iterator[bytes]:
        for tensor, spec in enumerate(self._specs):
            new = flat_bits(spec, self._new)
            if self._base is None:
                yield from self._whole(tensor, spec, new)
                continue
            base = flat_bits(spec, self._base)
            for encoded, change in encode_tensor(tensor, base, new, self._classes, self._crossing):
                if encoded:
                    self._digest.change(spec, change.positions, change.old, change.new)
                    self.changed += change.positions.size
                    if self.changes is not None:
                        self.changes.append(change)
                    yield encoded
            self.elements += spec.elements

    def _whole(self, tensor: int, spec: TensorSpec, new: Tensor) -> Iterator[bytes]:
        """One block after the other crosses, and nothing of it stays."""
        whole = TensorHash()
        for offset, length in blocks(spec.elements):
            bits = self._crossing.bits(new[offset : offset + length])
            self._digest.extend(spec, offset, bits)
            whole.extend(bits)
            self.changed += length
            self.elements += length
            yield encode_whole(tensor, offset, bits)
        yield hash_block(tensor, whole.value())


def encode_tensor(
    tensor: int, base: Tensor, new: Tensor, classes: ClassMap = ONE_CLASS, crossing: Crossing | None = None
) -> Iterator[Encoded]:
    """`coding.encode_block` for every block of a tensor. base, new: `integers` of the same tensor.

    A base on another device than `new` comes there chunk by chunk.
    """
    if base.shape != new.shape or base.dtype != new.dtype:
        raise ShapeError(f"{base.dtype}{list(base.shape)} cannot become {new.dtype}{list(new.shape)}")
    for start in range(0, base.numel(), CHUNK_ELEMENTS):
        span = slice(start, start + CHUNK_ELEMENTS)
        yield from _encode_chunk(tensor, start, base[span].to(new.device), new[span], classes, crossing or Crossing())


def _encode_chunk(
    tensor: int, start: int, base: Tensor, new: Tensor, classes: ClassMap, crossing: Crossing
) -> Iterator[Encoded]:
    where = torch.nonzero(base != new).reshape(-1)
    places = crossing.off(where.to(torch.int32)).astype(np.int64)
    old, fresh = crossing.bits(base[where]), crossing.bits(new[where])
    ranked = base.element_size() == 2 and places.size
    ranks, groups = _ranks(base, where, classes, crossing) if ranked else (places, places)
    for offset, length in blocks(base.numel()):
        first, end = np.searchsorted(places, (offset, offset + length))
        mine = slice(int(first), int(end))
        change = Change(tensor, places[mine] + start, old[mine], fresh[mine])
        if not change.positions.size:
            yield b"", change
            continue
        if ranked:
            mode, payload = CLASSES, _class_payload(ranks[mine], groups[mine], change, classes)
        else:
            mode, payload = ULP, gaps.encode(places[mine] - offset, change.old, change.new, ulp=True)
        here = new[offset : offset + length]
        raw_bytes = length * here.element_size()
        mode, payload = cheapest(mode, payload, change, start + offset, partial(crossing.bits, here), raw_bytes)
        yield frame(RawBlock(tensor, start + offset, length, mode, payload)), change


def _ranks(
    base: Tensor, where: Tensor, classes: ClassMap, crossing: Crossing
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(how many elements of its class precede each change in its block, its class). where: int64[n] in the chunk."""
    group = classes_of(base, classes)
    mine, block = group[where], (where // BLOCK_ELEMENTS).to(torch.int32)
    ranks = torch.zeros_like(block)
    for number in range(classes.classes):
        count = torch.cumsum(group == number, dim=0, dtype=torch.int32)
        before = torch.nn.functional.pad(count[BLOCK_ELEMENTS - 1 : -1 : BLOCK_ELEMENTS], (1, 0))
        rank = count[where].sub_(before[block]).sub_(1)
        ranks = torch.where(mine == number, rank, ranks)
    return crossing.off(ranks).astype(np.int64), crossing.off(mine).astype(np.int64)


def _class_payload(
    ranks: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], change: Change, classes: ClassMap
) -> bytes:
    steps = key(change.new) - key(change.old)
    byte = (change.old >> np.uint16(7)) & np.uint16(0xFF)
    listed = [array.astype(np.uint64) for array in (ranks, groups, steps, byte)]
    return encode_listed(listed[0], listed[1], listed[2], listed[3], classes)
