"""Publishing: weights in, a signed artifact in the swarm out.

    Publisher.publish(specs, bits, version)     a delta against what the host published last, or a snapshot
    python -m aurora_p2p.train.publish FOLDER --socket PATH      a checkpoint folder as version 0

Blocks are sent as they are encoded, so that segments leave the host while later tensors are still being compared.
The host's head decides the base: a delta is made only when the host's newest digest is that of the bits kept here, so a
restarted trainer or host never diffs against weights that nodes do not hold. A publication that the host's end, or its
full disk, cuts off is begun anew when there is a host with room (patience.py); if it was only the answer that got lost,
the host's head shows it. The header's size bound precedes the
scan; a delta that outgrows it is aborted and published anew with the checkpoint's own size as bound.
Sharded (FSDP) extraction is not covered.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from aurora_p2p.delta.classes.map import learn, sampled
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import DeltaEncoder, encode_delta, encode_snapshot
from aurora_p2p.delta.tensors import Bits, layout_id
from aurora_p2p.errors import CheckpointError, RefusedError, ShapeError
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.faults import reach
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.patience import insist
from aurora_p2p.types import DTYPES, NO_BASE, ManifestHash, Seq, StateDigest, TensorSpec, Version
from aurora_p2p.wire.manifest import ModelConfig, TensorEntry
from aurora_p2p.wire.trainer import BeginPublish

MIN_BOUND = 64 << 10
"""Smallest size bound: the estimate from a tiny previous delta must not abort a normal one."""
FRAMING_PER_TENSOR = 64
"""Bytes of block framing that a checkpoint of many tiny tensors may need beyond 1.1x its size."""

MAX_DELTAS = 256
"""The last resort. A host makes snapshots of its own long before (host/upkeep.py); one that cannot, for want of disk or
budget, gets a version that travels whole, before its chain is longer than what nodes remember."""
PROGRESS_BYTES = 256 << 20

EXPONENT_MASKS = {
    "BF16": 0x7F80,
    "F16": 0x7C00,
    "F32": 0x7F80_0000,
    "F64": 0x7FF0 << 48,
    "F8_E5M2": 0x7C,
    "F8_E4M3": 0x7F,
}
"""Bits that are all ones exactly in Inf and NaN (F8_E4M3 has one NaN per sign and no Inf)."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What one publish cost. changed: elements whose bits differ (a snapshot: all); seconds: scan to last byte sent.

    segments: 0 when the host completed it but was killed before it could say so.
    """

    seq: Seq
    version: Version
    manifest_hash: ManifestHash
    digest: StateDigest
    kind: str
    bytes: int
    segments: int
    changed: int
    elements: int
    seconds: float


class Publisher:
    """Keeps the bits published last. The arrays given to it are kept: hand over ones that nobody writes to."""

    def __init__(self, client: SwarmClient, config: ModelConfig, on_sent: Callable[[int], None] | None = None) -> None:
        """on_sent is called with the bytes of a publication sent so far."""
        self._client, self._config, self._on_sent = client, config, on_sent
        self._base: Mapping[str, Bits] = {}
        self._digest = StateDigest(b"")
        self._last_delta = 0
        self._unanswered: Publication | None = None
        """Its last byte is sent, and the host has not answered."""

    def adopt(self, specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> bool:
        """Make these weights the base if they are what the host published last; says whether they are."""
        digest = full_digest(specs, bits)
        if digest != self._client.attach().digest:
            return False
        self._base, self._digest = bits, digest
        return True

    def publish(
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Bits], version: Version, *, full: bool = False
    ) -> Publication:
        """Publish weights (sorted specs, flat bits) as `version`; full asks for a snapshot even where a delta would do.

        Waits while the host is away or its disk is full. Raises CheckpointError for weights that are not finite,
        RefusedError when the host refuses.
        """
        refuse_non_finite(specs, bits)
        self._unanswered = None
        return insist(self._client, lambda: self._attempt(specs, bits, version, full), f"publishing version {version}")

    def _attempt(
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Bits], version: Version, full: bool
    ) -> Publication:
        publication = self._arrived(version)
        if publication is None:
            try:
                publication = self._publish_once(specs, bits, version, full)
            except RefusedError:  # a host that was stopped goes on with an earlier attempt of ours
                publication = self._arrived(version)
                if publication is None:
                    raise
        if publication.kind == "delta":
            self._last_delta = publication.bytes
        self._base, self._digest = bits, publication.digest
        return publication

    def _arrived(self, version: Version) -> Publication | None:
        """What was sent before without an answer, if it is the host's head by now."""
        sent = self._unanswered
        if sent is None:
            return None
        head = self._client.attach()
        if (head.version, head.digest) != (version, sent.digest):
            return None
        return replace(sent, seq=head.seq, manifest_hash=ManifestHash(head.manifest_hash))

    def _publish_once(
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Bits], version: Version, full: bool
    ) -> Publication:
        head = self._client.attach()
        if full or not self._base or head.digest != self._digest or head.deltas >= MAX_DELTAS:
            return self._snapshot(specs, bits, version)
        return self._delta(specs, bits, version, head.version)

    def _snapshot(self, specs: Sequence[TensorSpec], bits: Mapping[str, Bits], version: Version) -> Publication:
        begin = BeginPublish(
            version=version,
            kind="snapshot",
            base_version=NO_BASE,
            base_digest=b"",
            layout=layout_id(specs),
            size_bound=snapshot_bound(specs),
            class_map=b"",
            tensors=tuple(TensorEntry(spec, "full") for spec in specs),
            model=self._config,
        )
        return self._publish_within(begin, [begin.size_bound], lambda: encode_snapshot(specs, bits))

    def _delta(
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Bits], version: Version, base: Version
    ) -> Publication:
        ceiling = snapshot_bound(specs)
        halves = [spec.name for spec in specs if DTYPES[spec.dtype] == 2]
        classes = learn(sampled([(self._base[name], bits[name]) for name in halves]))
        expected = 4 * self._last_delta or sum(spec.nbytes for spec in specs) // 2
        begin = BeginPublish(
            version=version,
            kind="delta",
            base_version=base,
            base_digest=self._digest,
            layout=layout_id(specs),
            size_bound=ceiling,
            class_map=classes.thresholds,
            tensors=(),
            model=None,
        )
        bounds = [min(max(expected, MIN_BOUND), ceiling), ceiling]
        base_bits, digest = self._base, self._digest
        return self._publish_within(begin, bounds, lambda: encode_delta(specs, base_bits, bits, digest, classes))

    def _publish_within(
        self, begin: BeginPublish, bounds: Sequence[int], encode: Callable[[], DeltaEncoder]
    ) -> Publication:
        """Publish under the first bound that holds; each one that does not costs the host a sequence number."""
        for bound in bounds:
            publication = self._stream(msgspec.structs.replace(begin, size_bound=bound), encode())
            if publication:
                return publication
            self._client.abort_publish(f"the artifact outgrew its bound of {bound} bytes")
        raise ShapeError("the encoder wrote more than the checkpoint's size")

    def _stream(self, begin: BeginPublish, encoder: DeltaEncoder) -> Publication | None:
        """Send blocks as they are encoded; None as soon as they outgrow the bound (the publication is then open)."""
        started, sent = time.perf_counter(), 0
        self._client.begin_publish(begin)
        reach("publish.begun")
        for block in encoder:
            sent += len(block)
            if sent > begin.size_bound:
                return None
            self._client.send_body(block)
            reach("publish.sending")
            if self._on_sent:
                self._on_sent(sent)
        self._unanswered = Publication(
            Seq(0),
            begin.version,
            ManifestHash(b""),
            encoder.digest,
            begin.kind,
            sent,
            0,
            encoder.changed,
            encoder.elements,
            time.perf_counter() - started,
        )
        reach("publish.ending")
        published = self._client.end_publish(encoder.digest)
        reach("publish.ended")
        return replace(
            self._unanswered,
            seq=published.seq,
            manifest_hash=published.manifest_hash,
            segments=published.segments,
        )


def snapshot_bound(specs: Sequence[TensorSpec]) -> int:
    """1.1x the checkpoint and its framing, bytes: no encoding of these tensors is larger."""
    return sum(spec.nbytes for spec in specs) * 11 // 10 + FRAMING_PER_TENSOR * (len(specs) + 1)


def refuse_non_finite(specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> None:
    """Raise CheckpointError naming the first tensor that holds Inf or NaN: such weights never leave the trainer."""
    for spec in specs:
        mask = EXPONENT_MASKS.get(spec.dtype)
        if mask is None:
            continue
        flat = bits[spec.name]
        if np.any((flat & flat.dtype.type(mask)) == flat.dtype.type(mask)):
            raise CheckpointError(
                f"tensor {spec.name} holds a value that is not finite; nothing was published",
                hint="lower the learning rate, or go back to an earlier checkpoint",
            )


def publish_folder(
    folder: Path, client: SwarmClient, on_sent: Callable[[int], None] | None = None
) -> Publication | None:
    """Publish a checkpoint folder as the run's first version; None when the host's newest is exactly that.

    That is version 0, unless the host's ledger knows of versions whose artifacts are lost.

    Raises CheckpointError when the host's run has gone on from it, or began with other weights.
    """
    from aurora_p2p.engine.model import read_checkpoint  # torch: a trainer that hands over arrays needs none

    config, specs, bits = read_checkpoint(folder)
    publisher = Publisher(client, config, on_sent)
    if publisher.adopt(specs, bits):
        return None
    head = client.attach()
    if head.version != NO_BASE:
        raise CheckpointError(
            f"this run already holds version {head.version}, which is not {folder}",
            hint="start a new run with another --home, or leave the checkpoint out",
        )
    return publisher.publish(specs, bits, head.following)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m aurora_p2p.train.publish", description=publish_folder.__doc__)
    parser.add_argument("folder", type=Path, help="safetensors and config.json")
    parser.add_argument("--socket", type=Path, required=True, help="the host's home or its trainer socket")
    arguments = parser.parse_args()
    with SwarmClient.open(arguments.socket) as client:
        publication = publish_folder(arguments.folder, client, _Progress().show)
    if publication is None:
        sys.stdout.write("already published\n")
    else:
        size, segments = publication.bytes, publication.segments
        sys.stdout.write(f"version 0: {size} bytes in {segments} segments, seq {publication.seq}\n")


class _Progress:
    """A line per PROGRESS_BYTES."""

    def __init__(self) -> None:
        self._next = PROGRESS_BYTES

    def show(self, sent: int) -> None:
        if sent >= self._next:
            sys.stdout.write(f"{sent >> 20} MiB sent\n")
            sys.stdout.flush()
            self._next = sent + PROGRESS_BYTES


if __name__ == "__main__":
    run_cli(main)
