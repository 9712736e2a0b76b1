"""Vectors of weights: blocks in each mode, layout and digest, a snapshot and a delta with all their signed parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from aurora_p2p.artifact.manifest import PageWriter, artifact_id_of, manifest_hash_of
from aurora_p2p.delta.block import RAW, BlockReader, RawBlock, frame
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.coding import encode_block, encode_whole
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.hashes import hash_block, tensor_hash
from aurora_p2p.delta.tensors import Bits, bits_dtype, layout_id, tensor_id
from aurora_p2p.delta.varint import varint
from aurora_p2p.types import DTYPES, ManifestHash, RunId, Seq, StateDigest, TensorSpec, Version
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.manifest import Header, ModelConfig, TensorEntry
from aurora_p2p.wire.signed import Signed, seal
from tests.vectors.samples import plain
from tests.vectors.swarm import KEYS, SWARM


class Case(NamedTuple):
    """One block: its elements before (None: there is no base) and after, and the thresholds of the class map."""

    meaning: str
    dtype: str
    base: list[int] | None
    new: list[int]
    class_map: bytes = b""


ONE = 0x3F80
"""1.0 in bf16."""


def _moved(base: list[int], steps: dict[int, int]) -> list[int]:
    return [pattern + steps.get(place, 0) for place, pattern in enumerate(base)]


def _octaves(length: int) -> list[int]:
    """bf16 patterns whose exponents are 120 .. 123, in turn."""
    return [(120 + place % 4) << 7 | place % 128 for place in range(length)]


def _halving(length: int) -> list[int]:
    """Those after every second one took a step; magnitudes halve with each exponent."""
    steps = {place: 1 + 5 * place % 7 << 3 - place % 4 for place in range(length) if 7 * place // 3 % 2 == 0}
    return _moved(_octaves(length), steps)


BLOCKS = [
    Case("raw: there is no base", "BF16", None, [ONE, 0x8000, 0x7FC1]),
    Case("raw: cheaper than changes", "U8", [0, 0], [200, 77]),
    Case("dense: a plane of exponents that compresses, one of mantissas that does not", "BF16", None, _octaves(64)),
    Case("dense: four planes", "F32", None, [0x3C000000 + 0x10001 * (place % 8) for place in range(64)]),
    Case("classes: one step up, one down", "BF16", [ONE] * 12, _moved([ONE] * 12, {3: 1, 11: -1})),
    Case("classes: a step across zero", "BF16", [1] * 16, [1] * 15 + [0x8001]),
    Case("classes, listed: a magnitude above 1", "BF16", [ONE] * 16, _moved([ONE] * 16, {0: 1, 15: 64})),
    Case("classes, listed: the widest step", "BF16", [0] * 16, _moved([0] * 16, {5: 1, 7: 0x7FFF})),
    Case(
        "classes, fixed: with an escape",
        "BF16",
        [ONE] * 40,
        _moved([ONE] * 40, {4 * place: 3 + place % 3 for place in range(9)} | {37: 500}),
    ),
    Case("classes, scaled: one class", "BF16", _octaves(40), _halving(40)),
    Case("classes, scaled: two classes, the first with its length", "BF16", _octaves(96), _halving(96), b"\x7a"),
    Case(
        "classes, complement: what did not change is coded",
        "BF16",
        [ONE] * 20,
        _moved([ONE] * 20, {place: 1 if place % 3 else -1 for place in range(17) if place not in (4, 11)}),
    ),
    Case(
        "classes: eight, of which some are empty",
        "BF16",
        [place * 977 % 0x8000 for place in range(80)],
        _moved([place * 977 % 0x8000 for place in range(80)], dict.fromkeys(range(3, 80, 9), 1)),
        bytes.fromhex("206070788090b0"),
    ),
    Case("classes: fp16 and its class byte", "F16", [0x3C00] * 12, _moved([0x3C00] * 12, {6: 2}), b"\x78"),
    Case("wrap: integers that change sign", "I16", [0xFFFF] * 16, [0x0000] + [0xFFFF] * 15),
    Case("wrap: bytes", "I8", [0xFF] * 16, [0xFF] * 9 + [0x00] + [0xFF] * 6),
    Case("ulp: one step up", "F32", [0x3F800000] * 40, _moved([0x3F800000] * 40, {7: 1})),
    Case("ulp: a step as wide as the type", "F32", [0x00000000] * 8, [0x7F7FFFFF] + [0x00000000] * 7),
    Case("ulp: 64 bits", "F64", [1 << 62] * 8, _moved([1 << 62] * 8, {1: -1, 6: 9})),
    Case("nothing changed", "BF16", [1, 2, 3], [1, 2, 3]),
]
SPECS = (TensorSpec("bias", "F32", (3,)), TensorSpec("weight", "BF16", (4, 8)))
ALIASES = {"head": "weight"}
TINY = ModelConfig("qwen3", 32, 8, 16, 1, 1, 1, 8, 64, 10_000.0, 1e-6, True, False, (2,), 0)


def blocks() -> dict[str, Any]:
    """Each mode, from bits to bytes, and frames that are refused."""
    rows = []
    for meaning, dtype, base, new, class_map in BLOCKS:
        encoded = encode_whole(1, 0, _bits(dtype, new))
        if base is not None:
            encoded, _ = encode_block(1, 0, _bits(dtype, base), _bits(dtype, new), ClassMap(class_map))
        modes = [block.mode for block in BlockReader().feed(encoded)]
        row = {"meaning": meaning, "dtype": dtype, "class_map": class_map.hex(), "base": base, "new": new}
        rows.append(row | {"mode": modes[0] if modes else None, "bytes": encoded.hex()})
    good = frame(RawBlock(0, 0, 2, RAW, b"\x01\x02\x03\x04"))
    return {
        "varints": [{"value": value, "bytes": varint(value).hex()} for value in (0, 1, 127, 128, 300, 2**63 - 1)],
        "tensor": 1,
        "offset": 0,
        "blocks": rows,
        "hash": _hash(),
        "refused": [
            {"bytes": (good[:-1] + bytes([good[-1] ^ 1])).hex(), "why": "the CRC is wrong"},
            {"bytes": "000000010000000000", "why": "a block of no elements"},
            {"bytes": "80000001", "why": "a varint that is not in its shortest form"},
        ],
    }


def _hash() -> dict[str, Any]:
    """The hash block of a tensor."""
    bits = _bits("BF16", [ONE, 0x8000, 0x7FC1])
    value = tensor_hash(bits)
    return {"dtype": "BF16", "bits": bits.tolist(), "hash": value.hex(), "bytes": hash_block(1, value).hex()}


def digests() -> dict[str, Any]:
    """Tensor ids, layouts and state digests."""
    before, after = _state()
    return {
        "tensors": [{"spec": plain(spec), "id": tensor_id(spec)} for spec in SPECS],
        "layouts": [
            {"specs": plain(SPECS), "aliases": aliases, "layout": layout_id(SPECS, aliases).hex()}
            for aliases in ({}, ALIASES)
        ],
        "states": [
            {"specs": plain(SPECS), "bits": _plain(state), "digest": full_digest(SPECS, state).hex()}
            for state in (before, after)
        ]
        + [{"specs": [], "bits": {}, "digest": full_digest([], {}).hex()}],
        "dtypes": [_repeated(dtype, 3) for dtype in DTYPES] + [_repeated(dtype, 9000) for dtype in ("BF16", "F64")],
    }


def _repeated(dtype: str, elements: int) -> dict[str, Any]:
    """The digest of a tensor that a pattern fills, over and over; more than 4096 elements are more than one row."""
    width = 8 * bits_dtype(dtype).itemsize
    pattern = [1, 2 ** (width - 1), 2**width - 1, 0x5A5A5A5A5A5A5A5A % 2**width, 0]
    spec = TensorSpec("w", dtype, (elements,))
    bits = {"w": np.resize(_bits(dtype, pattern), elements)}
    return {"spec": plain(spec), "id": tensor_id(spec), "pattern": pattern, "digest": full_digest([spec], bits).hex()}


def artifacts() -> dict[str, Any]:
    """A snapshot and the delta after it: everything that is signed, hashed and sent."""
    before, after = _state()
    first, manifest, digest = _artifact(11, list(encode_snapshot(SPECS, before)), full_digest(SPECS, before), None)
    delta = encode_delta(SPECS, before, after, digest)
    second, _, _ = _artifact(12, list(delta), full_digest(SPECS, after), (manifest, digest))
    return {"publisher": KEYS["publish"].peer, "snapshot": first, "delta": second}


def _artifact(
    seq: int, pieces: list[bytes], digest: StateDigest, base: tuple[ManifestHash, StateDigest] | None
) -> tuple[dict[str, Any], ManifestHash, StateDigest]:
    body, header = b"".join(pieces), seal(KEYS["publish"], _header(seq, base))
    writer = PageWriter(KEYS["publish"], header)
    segments = [body[start : start + 256] for start in range(0, len(body), 256)]
    pages: list[Signed] = []
    for segment in segments:
        writer.add(blake3(segment).digest())
        pages += writer.flush() if len(segments) > 1 and not pages else []
    pages += writer.flush()
    final = writer.finish(len(body), digest)
    row = {
        "header": encode(header).hex(),
        "header_value": plain(_header(seq, base)),
        "artifact": artifact_id_of(header).hex(),
        "body": body.hex(),
        "segments": [blake3(segment).hexdigest() for segment in segments],
        "pages": [encode(page).hex() for page in pages],
        "final": encode(final).hex(),
        "manifest_hash": manifest_hash_of(final).hex(),
        "digest": digest.hex(),
    }
    return row, manifest_hash_of(final), digest


def _header(seq: int, base: tuple[ManifestHash, StateDigest] | None) -> Header:
    entries = (
        *(TensorEntry(spec, "full") for spec in SPECS),
        TensorEntry(TensorSpec("head", "BF16", (4, 8)), "alias", "weight"),
    )
    return Header(
        format=1,
        swarm=SWARM,
        run=RunId(bytes([0x52]) * 16),
        version=Version(seq - 11),
        seq=Seq(seq),
        nonce=bytes([seq]) * 16,
        kind="delta" if base else "snapshot",
        base_version=Version(seq - 12) if base else Version(-1),
        base_manifest=base[0] if base else b"",
        base_digest=base[1] if base else b"",
        layout=layout_id(SPECS, ALIASES),
        segment_bytes=256,
        size_bound=1024,
        class_map=b"",
        tensors=() if base else tuple(sorted(entries, key=lambda entry: entry.spec.name)),
        model=None if base else TINY,
    )


def _state() -> tuple[dict[str, Bits], dict[str, Bits]]:
    before = {
        "bias": _bits("F32", [0x3F800000, 0x80000000, 0x7FC00001]),
        "weight": _bits("BF16", [0x3C00 + 5 * i for i in range(32)]),
    }
    after = {name: bits.copy() for name, bits in before.items()}
    after["weight"][3] += 1
    after["weight"][20] -= 1
    after["weight"][31] ^= 0x8000
    return before, after


def _bits(dtype: str, values: Sequence[int]) -> Bits:
    return np.array(values, bits_dtype(dtype))


def _plain(state: dict[str, Bits]) -> dict[str, list[int]]:
    return {name: bits.tolist() for name, bits in state.items()}
