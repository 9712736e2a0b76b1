"""A host's pool with its ledger (the list of records it made durable) and a few nodes that answer for real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.lease.events import Effect, Event, From, VersionPublished, records_of, reply_of
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.types import ManifestHash, PeerId, RunId, StateDigest, Step, Version
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.control import Lease, LeaseRequest, LeaseSample, Receipt, SampleResult, Sampling, Submit
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trainer import SubmitPrompts, TakeRollouts

RUN = RunId(b"r" * 16)
SECRET = b"s" * 32
STOP = 2
SAMPLING = Sampling(temperature=1.0, max_tokens=4, vocabulary=64, stop_tokens=(STOP,))
NODES = [Identity(bytes([index]) * 32) for index in range(1, 5)]


def manifest_of(version: int) -> ManifestHash:
    return ManifestHash(hash_of(b"manifest %d" % version))


def digest_of(version: int) -> StateDigest:
    return StateDigest(hash_of(b"digest %d" % version))


def prompts_of(step: int, count: int, group: int, sampling: Sampling = SAMPLING) -> SubmitPrompts:
    return SubmitPrompts(Step(step), tuple((3, step % 50, index % 50) for index in range(count)), group, sampling)


def finish(node: Identity, lease: Lease, sample: LeaseSample, /, **changes: Any) -> Signed:
    """A result that an honest node would sign, with `changes`."""
    result = SampleResult(
        lease=lease.lease,
        fencing=lease.fencing,
        run=lease.run,
        target_step=lease.target_step,
        prompt=sample.prompt,
        sample=sample.sample,
        seed=sample.seed,
        version=lease.version,
        manifest_hash=lease.manifest_hash,
        digest=lease.digest,
        audited=lease.version,
        tokens=(5, 6, STOP),
        logprobs=(-0.5, 0.0, -1.5),
        finish="stop",
    )
    return seal(node, structs.replace(result, **changes))


class World:
    def __init__(self, **options: Any) -> None:
        self.options = LeaseOptions(**options)
        self.now = 1000.0
        self.epoch = 1
        self.ledger: list[Any] = []
        self.effects: list[Effect] = []
        """Of the last event."""
        self.pool = self.new_pool()

    def new_pool(self) -> WorkPool:
        return WorkPool(RUN, SECRET, self.epoch, self.options)

    def restart(self) -> None:
        """The host dies and comes back with nothing but its ledger."""
        self.epoch += 1
        self.pool = self.new_pool()
        self.ledger += records_of(self.pool.restore(list(self.ledger), now=self.now))

    @contextmanager
    def lost(self) -> Iterator[None]:
        """What happens inside is decided and never reaches the ledger: the host dies, and comes back without it."""
        kept = list(self.ledger)
        yield
        self.ledger = kept
        self.restart()

    def handle(self, event: Event) -> Any:
        """The reply's message, or None."""
        self.effects = self.pool.handle(event, now=self.now)
        self.ledger += records_of(self.effects)
        reply = reply_of(self.effects)
        return reply.message if reply else None

    def wait(self, seconds: float) -> None:
        """Let time pass and deadlines take effect."""
        self.now += seconds
        self.effects = self.pool.expire(now=self.now)
        self.ledger += records_of(self.effects)

    def publish(self, version: int) -> None:
        record = VersionPublished(Version(version), manifest_of(version), digest_of(version))
        self.ledger.append(record)
        self.handle(record)

    def submit_prompts(self, step: int, count: int, group: int) -> Any:
        return self.handle(prompts_of(step, count, group))

    def ask(self, node: Identity, version: int = 0, /, *, samples: int = 8, speed: float = 0.0, **changes: Any) -> Any:
        """A Lease or a Refusal."""
        request = LeaseRequest(
            nonce=bytes(32),
            run=self.pool.run,
            version=Version(version),
            manifest_hash=manifest_of(version),
            digest=digest_of(version),
            tokens_per_second=speed,
            max_samples=samples,
        )
        return self.handle(From(node.peer, structs.replace(request, **changes)))

    def send(self, peer: PeerId, *results: Signed) -> tuple[Receipt, ...]:
        receipts: tuple[Receipt, ...] = self.handle(From(peer, Submit(results, 0.0))).receipts
        return receipts

    def work_off(self, node: Identity, lease: Lease, *, seconds: float = 0.0) -> None:
        """Every sample of the lease, finished `seconds` from now."""
        self.now += seconds
        receipts = self.send(node.peer, *(finish(node, lease, sample) for sample in lease.samples))
        assert all(receipt.accepted for receipt in receipts)

    def take(self, step: int) -> Any:
        return self.handle(TakeRollouts(Step(step), 0.0))
