"""What others send per step, re-implemented from their published descriptions; sizes only, single stream each.

leb128       LEB128 gaps and raw bf16 values (AuroraRL, arXiv 2602.11456)
leb128_zstd  the same through zstd-1
xor_zstd     the dense XOR of both checkpoints through zstd-1
u16_zstd     gaps as uint16 (longer ones clipped) and raw values through zstd-1
pcodec       gaps and ULP steps through pcodec, a numeric compressor
additive     the exactness rival: bf16(new) - bf16(old), rounded to bf16 and added
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import zstandard
from pcodec import ChunkConfig, standalone

from aurora_p2p.delta.tensors import Bits, Positions
from benchmarks.codec_data import rounded

Pair = tuple[Bits, Bits]


def changes(pair: Pair) -> tuple[Positions, Bits]:
    """(gaps, new values): unchanged elements before each change, and its new bits."""
    base, new = pair
    where = np.flatnonzero(base != new)
    return np.diff(where, prepend=-1) - 1, new[where]


def leb128(pair: Pair) -> bytes:
    gaps, values = changes(pair)
    return varints(gaps) + values.tobytes()


def varints(values: Positions) -> bytes:
    """LEB128 of each value, vectorised: a byte per started 7 bits."""
    sizes = 1 + sum((values >= 1 << bits).astype(np.int64) for bits in range(7, 35, 7))
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if values.size else 0, np.uint8)
    for index in range(int(sizes.max(initial=0))):
        some = sizes > index
        byte = (values[some] >> 7 * index) & 0x7F
        out[(ends - sizes)[some] + index] = byte | ((sizes[some] > index + 1) << 7)
    return out.tobytes()


def python_varint_loop(pair: Pair) -> bytes:
    """LEB128 gaps and raw values, one element at a time in Python: the speed of the public reference."""
    base, new = pair
    out, last = bytearray(), -1
    for index in np.flatnonzero(base != new).tolist():
        gap = index - last - 1
        while gap > 0x7F:
            out.append(gap & 0x7F | 0x80)
            gap >>= 7
        out.append(gap)
        out += int(new[index]).to_bytes(2, "little")
        last = index
    return bytes(out)


def leb128_zstd(pair: Pair) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(leb128(pair))


def xor_zstd(pair: Pair) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress((pair[0] ^ pair[1]).tobytes())


def u16_zstd(pair: Pair) -> bytes:
    gaps, values = changes(pair)
    packed = np.minimum(gaps, 0xFFFF).astype(np.uint16).tobytes() + values.tobytes()
    return zstandard.ZstdCompressor(level=1).compress(packed)


def pcodec(pair: Pair) -> bytes:
    base, new = pair
    gaps, _ = changes(pair)
    where = np.flatnonzero(base != new)
    steps = ordered(new[where]) - ordered(base[where])
    config = ChunkConfig()
    coded = standalone.simple_compress(gaps.astype(np.uint32), config) + standalone.simple_compress(steps, config)
    return bytes(coded)


def ordered(bits: Bits) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """bf16 patterns as integers in the order of their values."""
    magnitude = (bits & np.uint16(0x7FFF)).astype(np.int32)
    return np.where(bits >> np.uint16(15), -1 - magnitude, magnitude).astype(np.int32)


RIVALS: dict[str, Callable[[Pair], bytes]] = {
    "leb128": leb128,
    "leb128_zstd": leb128_zstd,
    "xor_zstd": xor_zstd,
    "u16_zstd": u16_zstd,
    "pcodec": pcodec,
}


def added(held: Bits, pair: Pair) -> Bits:
    """What the additive scheme's receiver, which holds `held`, has after the step base -> new."""
    base, new = pair
    where = np.flatnonzero(base != new)
    difference = floats(rounded(floats(new[where]) - floats(base[where])))
    result = held.copy()
    result[where] = rounded(floats(held[where]) + difference)
    return result


def floats(bits: Bits) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bound(pair: Pair) -> float:
    """Bits per change that no code can go below which knows an element's base exponent and nothing else.

    Entropy of which elements change given the exponent, one bit of sign, and the entropy of the magnitude given it.
    """
    base, new = pair
    differs, exponent = base != new, (base >> np.uint16(7)) & np.uint16(0xFF)
    elements = np.bincount(exponent, minlength=256).astype(np.float64)
    changed = np.bincount(exponent[differs], minlength=256).astype(np.float64)
    share = np.divide(changed, elements, where=elements > 0, out=np.zeros(256))
    where_bits = float((elements * _binary_entropy(share)).sum())
    steps = np.minimum(np.abs(ordered(new[differs]) - ordered(base[differs])), 4096)
    table = np.zeros((256, 4097))
    np.add.at(table, (exponent[differs], steps), 1)
    total = table.sum(axis=1, keepdims=True)
    likely = np.divide(table, total, where=total > 0, out=np.zeros_like(table))
    size_bits = float(-(table * np.log2(likely, where=likely > 0, out=np.zeros_like(likely))).sum())
    return (where_bits + size_bits) / differs.sum() + 1.0


def _binary_entropy(
    share: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    inside = (share > 0) & (share < 1)
    one = np.where(inside, share, 0.5)
    return np.where(inside, -one * np.log2(one) - (1 - one) * np.log2(1 - one), 0.0)
