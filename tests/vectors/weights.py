"""Vectors of weights: blocks in each mode, layout and digest, a snapshot and a delta with all their signed parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from blake3 import blake3

from aurora_p2p.artifact.manifest import PageWriter, artifact_id_of, manifest_hash_of
from aurora_p2p.delta.block import RAW, BlockReader, RawBlock, encode_block, frame, varint
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import Bits, bits_dtype, layout_id, tensor_id
from aurora_p2p.types import ManifestHash, RunId, Seq, StateDigest, TensorSpec, Version
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.manifest import Header, ModelConfig, TensorEntry
from aurora_p2p.wire.signed import Signed, seal
from tests.vectors.samples import plain
from tests.vectors.swarm import KEYS, SWARM

Case = tuple[str, str, list[int] | None, list[int]]
BLOCKS: list[Case] = [
    ("raw: there is no base", "BF16", None, [0x3F80, 0x8000, 0x7FC1]),
    ("raw: cheaper than changes", "U8", [0, 0], [200, 77]),
    ("ulp: one step up, one down", "BF16", [0x3F80] * 12, [0x3F80] * 3 + [0x3F81] + [0x3F80] * 7 + [0x3F7F]),
    ("ulp: a step across zero", "BF16", [0x0001] * 16, [0x0001] * 15 + [0x8001]),
    ("ulp: a larger step is an exception", "BF16", [0x3F80] * 16, [0x3F81] + [0x3F80] * 14 + [0x3FC0]),
    ("wrap: integers that change sign", "I16", [0xFFFF] * 16, [0x0000] + [0xFFFF] * 15),
    ("ulp: a step as wide as the type", "F32", [0x00000000] * 8, [0x7F7FFFFF] + [0x00000000] * 7),
    ("nothing changed", "BF16", [1, 2, 3], [1, 2, 3]),
]
SPECS = (TensorSpec("bias", "F32", (3,)), TensorSpec("weight", "BF16", (4, 8)))
ALIASES = {"head": "weight"}
TINY = ModelConfig("qwen3", 32, 8, 16, 1, 1, 1, 8, 64, 10_000.0, 1e-6, True, False, (2,), 0)


def blocks() -> dict[str, Any]:
    """Each mode, from bits to bytes, and frames that are refused."""
    rows = []
    for meaning, dtype, base, new in BLOCKS:
        encoded = encode_block(1, 0, None if base is None else _bits(dtype, base), _bits(dtype, new))
        modes = [block.mode for block in BlockReader().feed(encoded)]
        row = {"meaning": meaning, "dtype": dtype, "tensor": 1, "offset": 0, "base": base, "new": new}
        rows.append(row | {"mode": modes[0] if modes else None, "bytes": encoded.hex()})
    good = frame(RawBlock(0, 0, 2, RAW, b"\x01\x02\x03\x04"))
    return {
        "varints": [{"value": value, "bytes": varint(value).hex()} for value in (0, 1, 127, 128, 300, 2**63 - 1)],
        "blocks": rows,
        "refused": [
            {"bytes": (good[:-1] + bytes([good[-1] ^ 1])).hex(), "why": "the CRC is wrong"},
            {"bytes": "000000010000000000", "why": "a block of no elements"},
            {"bytes": "80000001", "why": "a varint that is not in its shortest form"},
        ],
    }


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
    }


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
