"""`python -m tests.vectors.generate`: write tests/vectors/*.json anew. Deterministic: the same code, the same bytes.

Each file: {"specs": the pages of docs/protocol that link it, "vectors": ...}. What has no JSON form is written as
samples.plain says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.frame import MAX_HEADER, MAX_PAYLOAD, encode_frame
from tests.docs.wire_blocks import wire_records
from tests.vectors import swarm, weights, work
from tests.vectors.samples import plain, sample

FOLDER = Path(__file__).parent
LINE = 140


class File(NamedTuple):
    """One file of vectors: the specification pages it belongs to, and what makes its contents."""

    specs: tuple[str, ...]
    make: Callable[[], Any]


def messages() -> dict[str, Any]:
    """Two values of every wire record."""
    return {
        name: [
            {"edge": edge, "value": plain(value := sample(kind, edge)), "bytes": encode(value).hex()}
            for edge in ("low", "high")
        ]
        for name, kind in sorted(wire_records().items())
    }


def frames() -> dict[str, Any]:
    """Frames on a byte stream, and beginnings that are refused."""
    cases = [(b"\x91\xa5hello", b""), (b"\x90", b"\x00\x01\x02"), (b"\xc0", bytes(5))]
    over = (MAX_HEADER + 1).to_bytes(4, "big"), (MAX_PAYLOAD + 1).to_bytes(4, "big")
    return {
        "frames": [
            {"header": header.hex(), "payload": payload.hex(), "bytes": encode_frame(header, payload).hex()}
            for header, payload in cases
        ],
        "refused": [
            {"bytes": bytes(8).hex(), "why": "a header of no bytes (a keep-alive, which only the data plane has)"},
            {"bytes": (over[0] + bytes(4)).hex(), "why": "a header over its limit"},
            {"bytes": (b"\x00\x00\x00\x01" + over[1]).hex(), "why": "a payload over its limit"},
        ],
    }


EVERY_PAGE = ("00-overview", "01-trust", "02-artifacts", "03-exchange", "04-leases", "05-tickets", "06-local")
FILES = {
    "messages": File(EVERY_PAGE, messages),
    "frames": File(("00-overview",), frames),
    "keys": File(("01-trust",), swarm.keys),
    "trust": File(("01-trust", "05-tickets"), swarm.trust),
    "tickets": File(("05-tickets",), swarm.tickets),
    "handshake": File(("03-exchange",), swarm.handshake),
    "blocks": File(("02-artifacts",), weights.blocks),
    "digests": File(("02-artifacts",), weights.digests),
    "artifacts": File(("02-artifacts",), weights.artifacts),
    "leases": File(("04-leases",), work.leases),
    "sampling": File(("04-leases",), work.sampling),
}


def render(file: File) -> str:
    return _render({"specs": file.specs, "vectors": file.make()}, 0) + "\n"


def _render(value: Any, depth: int) -> str:
    """JSON with one line per value that fits on one."""
    line = json.dumps(value, ensure_ascii=True)
    if len(line) + depth <= LINE or not _holds_more_than_scalars(value):
        return line
    pad, lists = "\n" + " " * (depth + 1), not isinstance(value, dict)
    items = (
        [_render(one, depth + 1) for one in value]
        if lists
        else [f"{json.dumps(key)}: {_render(one, depth + 1)}" for key, one in value.items()]
    )
    opening, closing = "[]" if lists else "{}"
    return opening + pad + ("," + pad).join(items) + "\n" + " " * depth + closing


def _holds_more_than_scalars(value: Any) -> bool:
    if isinstance(value, dict):
        return True
    return isinstance(value, list | tuple) and not all(isinstance(one, int | float) for one in value)


def main() -> None:
    for name, file in FILES.items():
        (FOLDER / f"{name}.json").write_text(render(file))


if __name__ == "__main__":
    main()
