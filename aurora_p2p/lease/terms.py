"""What a lease says: its seeds, its name, the record the ledger keeps and the message the node gets."""

from __future__ import annotations

from struct import Struct

from blake3 import blake3

from aurora_p2p.lease.events import LeaseGranted, Slot
from aurora_p2p.types import LeaseId, PeerId, RunId
from aurora_p2p.wire.control import Lease, LeaseRequest, LeaseSample
from aurora_p2p.wire.trainer import SubmitPrompts

_DRAW = Struct(">4Q")
"""Target step, version, prompt, sample."""


def seed_of(secret: bytes, step: int, version: int, slot: Slot) -> int:
    """63-bit sampling seed: a PRF (keyed BLAKE3, 32-byte secret) of the draw, so that a draw cannot be shopped for."""
    draw = _DRAW.pack(step, version, *slot)
    return int.from_bytes(blake3(draw, key=secret).digest(8), "big") >> 1


def lease_id_of(secret: bytes, fencing: int) -> LeaseId:
    """As unique as the fencing token, and not to be guessed."""
    return LeaseId(blake3(b"lease" + fencing.to_bytes(8, "big"), key=secret).digest(16))


def lease_record(
    secret: bytes, fencing: int, peer: PeerId, request: LeaseRequest, slots: list[Slot], work: SubmitPrompts
) -> LeaseGranted:
    """The lease of `slots` to `peer`, at the version that it asked with; pool.py sets its duration."""
    prompts = sorted({prompt for prompt, _ in slots})
    place = {prompt: index for index, prompt in enumerate(prompts)}
    return LeaseGranted(
        lease_id_of(secret, fencing),
        peer,
        work.step,
        request.version,
        request.manifest_hash,
        request.digest,
        fencing,
        0.0,
        tuple(LeaseSample(*slot, seed_of(secret, work.step, request.version, slot), place[slot[0]]) for slot in slots),
    )


def lease_message(run: RunId, record: LeaseGranted, work: SubmitPrompts) -> Lease:
    """The lease as the node reads it: each prompt's token ids once."""
    prompts = sorted({sample.prompt for sample in record.samples})
    return Lease(
        lease=record.lease,
        lessee=record.lessee,
        run=run,
        target_step=record.step,
        version=record.version,
        manifest_hash=record.manifest_hash,
        digest=record.digest,
        fencing=record.fencing,
        seconds=record.seconds,
        sampling=work.sampling,
        prompts=tuple(work.prompts[prompt] for prompt in prompts),
        samples=record.samples,
    )
