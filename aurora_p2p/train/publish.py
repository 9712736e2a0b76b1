"""Publishing: weights in, a signed artifact in the swarm out.

    Publisher.publish(specs, weights, version)  a delta against what the host published last, or a snapshot
    python -m aurora_p2p.train.publish FOLDER --socket PATH      a checkpoint folder as version 0

Blocks are sent as they are encoded, so that segments leave the host while later tensors are still being compared.
The host's head decides the base: a delta is made only when the host's newest digest is that of the bits kept here, so a
restarted trainer or host never diffs against weights that nodes do not hold. A publication that the host's end, or its
full disk, cuts off is begun anew when there is a host with room (patience.py); if it was only the answer that got lost,
the host's head shows it. The header's size bound precedes the
scan; a delta that outgrows it is aborted and published anew with the checkpoint's own size as bound.
Weights are arrays, or tensors on any device (base.py). Sharded (FSDP) extraction is not covered.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.errors import CheckpointError, RefusedError, ShapeError
from aurora_p2p.local.cli import run_cli
from aurora_p2p.local.faults import reach
from aurora_p2p.train.base import Base, BaseOn, Checkpoint, DevicePath, Encoder, HostBase, base_for
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.patience import insist
from aurora_p2p.types import NO_BASE, ManifestHash, Seq, StateDigest, TensorSpec, Version
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


@dataclass(frozen=True, slots=True)
class Publication:
    """What one publish cost. changed: elements whose bits differ (a snapshot: all); seconds: scan to last byte sent.

    segments: 0 when the host completed it but was killed before it could say so. bytes_off_device: of tensors that were
    compared on their device, what was moved off it, lost attempts included.
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
    bytes_off_device: int = 0


class Publisher:
    """Keeps the weights published last: arrays as they are, so hand over ones that nobody writes to; of tensors a copy.

    Tensors of a device are compared on it. Memory: device_base.py.
    """

    def __init__(
        self,
        client: SwarmClient,
        config: ModelConfig,
        on_sent: Callable[[int], None] | None = None,
        *,
        device_path: DevicePath = "auto",
        base_on: BaseOn = "device",
    ) -> None:
        """on_sent is called with the bytes of a publication sent so far. device_path "always": arrays too are compared
        by torch. base_on: where the base of tensors on a device is kept."""
        self._client, self._config, self._on_sent = client, config, on_sent
        self._device_path, self._base_on = device_path, base_on
        self._base: Base[Any] = HostBase()
        self._digest = StateDigest(b"")
        self._last_delta = 0
        self._unanswered: Publication | None = None
        """Its last byte is sent, and the host has not answered."""
        self._encoder: Encoder | None = None
        """What made it."""

    def adopt(self, specs: Sequence[TensorSpec], weights: Checkpoint) -> bool:
        """Make these weights the base if they are what the host published last; says whether they are."""
        self._base, bits = base_for(self._base, weights, self._device_path, self._base_on)
        digest = self._base.digest(specs, bits)
        if digest != self._client.attach().digest:
            return False
        self._base.keep(specs, bits, None)
        self._digest = digest
        return True

    def publish(
        self, specs: Sequence[TensorSpec], weights: Checkpoint, version: Version, *, full: bool = False
    ) -> Publication:
        """Publish weights (sorted specs, flat bits or tensors) as `version`; full: a snapshot where a delta would do.

        Waits while the host is away or its disk is full. Raises CheckpointError for weights that are not finite,
        ShapeError for ones that do not fit specs, RefusedError when the host refuses.
        """
        self._base, bits = base_for(self._base, weights, self._device_path, self._base_on)
        before = self._base.bytes_off_device
        self._base.refuse_non_finite(specs, bits)
        self._unanswered = None
        publication = insist(
            self._client, lambda: self._attempt(specs, bits, version, full), f"publishing version {version}"
        )
        return replace(publication, bytes_off_device=self._base.bytes_off_device - before)

    def _attempt(
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Any], version: Version, full: bool
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
        self._base.keep(specs, bits, self._encoder)
        self._digest, self._encoder = publication.digest, None
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
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Any], version: Version, full: bool
    ) -> Publication:
        head = self._client.attach()
        if full or not self._base.held or head.digest != self._digest or head.deltas >= MAX_DELTAS:
            return self._snapshot(specs, bits, version)
        return self._delta(specs, bits, version, head.version)

    def _snapshot(self, specs: Sequence[TensorSpec], bits: Mapping[str, Any], version: Version) -> Publication:
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
        return self._publish_within(begin, [begin.size_bound], lambda: self._base.snapshot(specs, bits))

    def _delta(
        self, specs: Sequence[TensorSpec], bits: Mapping[str, Any], version: Version, base: Version
    ) -> Publication:
        ceiling = snapshot_bound(specs)
        classes = self._base.classes(specs, bits)
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
        return self._publish_within(begin, bounds, lambda: self._base.delta(specs, bits, self._digest, classes))

    def _publish_within(self, begin: BeginPublish, bounds: Sequence[int], encode: Callable[[], Encoder]) -> Publication:
        """Publish under the first bound that holds; each one that does not costs the host a sequence number."""
        for bound in bounds:
            publication = self._stream(msgspec.structs.replace(begin, size_bound=bound), encode())
            if publication:
                return publication
            self._client.abort_publish(f"the artifact outgrew its bound of {bound} bytes")
        raise ShapeError("the encoder wrote more than the checkpoint's size")

    def _stream(self, begin: BeginPublish, encoder: Encoder) -> Publication | None:
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
        self._encoder = encoder
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
