"""A step worked off in virtual time, for benchmarks.sharing: the real work pool, modelled nodes and wires.

A node is its tokens per second over time. It works on one lease at a time, sample after sample, sends each when it is
finished, and asks for the next lease when the last sample is sent; a message takes half a round trip. The host answers
an ask as host/answers.py does: at once, or when something changed, or every `tail_seconds`. Weights arrive at once.

Not modelled: the time an engine loses on small batches, disk, and the trainer.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.lease.events import Completed, Effect, Event, From, VersionPublished, reply_of
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.types import ManifestHash, RunId, StateDigest, Step, Version
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.control import Lease, LeaseRequest, Receipts, SampleResult, Sampling, Submit
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trainer import SubmitPrompts

PROMPTS, GROUP = 128, 8
"""Of a step: those of the demo."""
SHORTEST, LONGEST = 100, 500
"""Tokens of a sample, evenly distributed."""
ROUND_TRIP_SECONDS = (0.02, 0.06)
"""Evenly distributed over the nodes: one continent."""
RUN, SECRET, STOP = RunId(b"r" * 16), b"s" * 32, 2
SAMPLING = Sampling(temperature=1.0, max_tokens=LONGEST + 12, vocabulary=64, stop_tokens=(STOP,))
MANIFEST, DIGEST = ManifestHash(hash_of(b"manifest")), StateDigest(hash_of(b"digest"))
SPEED_SECONDS = 0.02
"""Samples' durations are integrated in pieces of at most this length."""
STEP_LIMIT_SECONDS = 3600.0

Speed = Callable[[float], float]
"""Tokens per second at a time; 0 from when the machine is dead."""


def seconds_for(tokens: float, speed: Speed, start: float) -> float:
    """How long `tokens` take from `start` on; STEP_LIMIT_SECONDS when they are never done."""
    now = start
    while now < start + STEP_LIMIT_SECONDS:
        rate = speed(now)
        if rate * SPEED_SECONDS >= tokens:
            return now + tokens / rate - start
        tokens -= rate * SPEED_SECONDS
        now += SPEED_SECONDS
    return STEP_LIMIT_SECONDS


def length_of(seed: int, step: int, prompt: int, sample: int) -> int:
    """Tokens of a sample: the same whoever draws it."""
    return random.Random(f"{seed}/{step}/{prompt}/{sample}").randint(SHORTEST, LONGEST)


def step_tokens(seed: int, step: int) -> list[int]:
    """Lengths of a step's samples, group by group."""
    return [length_of(seed, step, prompt, sample) for prompt in range(PROMPTS) for sample in range(GROUP)]


@dataclass(slots=True)
class Machine:
    """A node. claim: its own moving average of tokens/s, which it sends along."""

    identity: Identity
    speed: Speed
    one_way: float
    claim: float = 0.0
    lease: Lease | None = None
    version: int = 0


@dataclass(slots=True)
class Swarm:
    """Machines at work for one pool; `work_off` each step in turn. Counts what the host did."""

    seed: int
    machines: Sequence[Machine]
    options: LeaseOptions = field(default_factory=LeaseOptions)
    now: float = 1000.0
    leases: int = 0
    repeated: int = 0
    """Samples leased more than once."""
    _pool: WorkPool = field(init=False)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _waiting: dict[str, Machine] = field(default_factory=dict)
    """Whose ask the host has not answered yet."""
    _completed: float | None = None

    def __post_init__(self) -> None:
        self._pool = WorkPool(RUN, SECRET, 1, self.options)

    def work_off(self, step: int) -> float:
        """Publish version `step`, submit the step's prompts; seconds until its last sample is admitted."""
        started, self._completed = self.now, None
        self._feed(VersionPublished(Version(step), MANIFEST, DIGEST))
        for machine in self.machines:
            machine.version = step
            if step == 0:
                self._later(machine.one_way, partial(self._asked, machine))
        prompts = tuple((3, step % 50, index % 50) for index in range(PROMPTS))
        self._feed(SubmitPrompts(Step(step), prompts, GROUP, SAMPLING))
        self._later(self.options.tail_seconds, self._look_again)
        while self._completed is None:
            self.now, _, act = heapq.heappop(self._due)
            if self.now > started + STEP_LIMIT_SECONDS:
                raise RuntimeError(f"step {step} never ends")
            act()
        return self._completed - started

    # ---- the host

    def _feed(self, event: Event) -> list[Effect]:
        effects = self._pool.handle(event, now=self.now)
        if any(isinstance(effect, Completed) for effect in effects):
            self._completed = self.now
        if not isinstance(event, From) or len(effects) > 1:
            self._later(0.0, self._wake)
        return effects

    def _wake(self) -> None:
        for machine in list(self._waiting.values()):
            self._answer(machine)

    def _look_again(self) -> None:
        if self._pool.expire(now=self.now) or self._waiting:
            self._wake()
        self._later(self.options.tail_seconds, self._look_again)

    def _asked(self, machine: Machine) -> None:
        self._waiting[machine.identity.peer] = machine
        self._answer(machine)

    def _answer(self, machine: Machine) -> None:
        if machine.identity.peer not in self._waiting or machine.speed(self.now) <= 0:
            return
        request = LeaseRequest(bytes(32), RUN, Version(machine.version), MANIFEST, DIGEST, machine.claim, 1024)
        reply = reply_of(self._feed(From(machine.identity.peer, request)))
        if reply is not None and isinstance(reply.message, Lease):
            del self._waiting[machine.identity.peer]
            self.leases += 1
            self._later(machine.one_way, partial(self._take, machine, reply.message))

    # ---- a node

    def _take(self, machine: Machine, lease: Lease) -> None:
        machine.lease = lease
        self._generate(machine, lease, 0, self.now, 0)

    def _generate(self, machine: Machine, lease: Lease, index: int, started: float, tokens: int) -> None:
        """The next sample; after the last one the node asks again."""
        if machine.lease is not lease:
            return
        if index == len(lease.samples):
            observed = tokens / (self.now - started)
            machine.claim = 0.8 * machine.claim + 0.2 * observed if machine.claim else observed
            machine.lease = None
            self._later(machine.one_way, partial(self._asked, machine))
            return
        sample = lease.samples[index]
        length = length_of(self.seed, lease.target_step, sample.prompt, sample.sample)
        seconds = seconds_for(length, machine.speed, self.now)
        if seconds < STEP_LIMIT_SECONDS:
            self._later(seconds, partial(self._finished, machine, lease, index, started, tokens + length, length))

    def _finished(self, machine: Machine, lease: Lease, index: int, started: float, tokens: int, length: int) -> None:
        if machine.lease is not lease:
            return
        self._later(machine.one_way, partial(self._arrived, machine, lease, index, length))
        self._generate(machine, lease, index + 1, started, tokens)

    def _arrived(self, machine: Machine, lease: Lease, index: int, length: int) -> None:
        sample = lease.samples[index]
        result = SampleResult(
            lease=lease.lease,
            fencing=lease.fencing,
            run=RUN,
            target_step=lease.target_step,
            prompt=sample.prompt,
            sample=sample.sample,
            seed=sample.seed,
            version=lease.version,
            manifest_hash=lease.manifest_hash,
            digest=lease.digest,
            audited=lease.version,
            tokens=(5,) * (length - 1) + (STOP,),
            logprobs=(-0.5,) * length,
            finish="stop",
        )
        submit = Submit((seal(machine.identity, result),), machine.claim)
        reply = reply_of(self._feed(From(machine.identity.peer, submit)))
        if reply is None or not isinstance(reply.message, Receipts):
            raise TypeError("results are answered with receipts")
        if not reply.message.receipts[0].accepted:
            self.repeated += 1
            self._later(machine.one_way, partial(self._stop, machine, lease))

    def _stop(self, machine: Machine, lease: Lease) -> None:
        """The lease was taken back: what is left of it is aborted."""
        if machine.lease is lease:
            machine.lease = None
            self._later(machine.one_way, partial(self._asked, machine))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), act))
