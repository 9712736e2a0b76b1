"""A host's books with many nodes, for benchmarks.admission: the host's rooms without its network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.host.answers import Answers, PoolDoor
from aurora_p2p.host.membership import Membership
from aurora_p2p.host.publication import Newest
from aurora_p2p.lease.events import VersionPublished
from aurora_p2p.lease.fleet import LeaseOptions
from aurora_p2p.lease.pool import WorkPool
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import Output
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import PublicationCompleted
from aurora_p2p.types import ArtifactId, Epoch, Generation, ManifestHash, Seq, StateDigest, Step, SwarmId, Version
from aurora_p2p.wire.codec import decode, encode, hash_of
from aurora_p2p.wire.control import (
    Grant,
    Join,
    Lease,
    LeaseRequest,
    LeaseSample,
    Request,
    SampleResult,
    Sampling,
    SignedLeaseRequest,
    Submit,
)
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trainer import SubmitPrompts
from aurora_p2p.wire.trust import Charter, Delegation, PeerRecord

ROOT, HOST = Identity.generate(), RoleKeys(*(Identity.generate() for _ in range(4)))
SWARM = SwarmId(ROOT.peer)
VOCABULARY, STOP, PROMPT_TOKENS = 32_000, 2, 64
TEXT_TOKENS = 8192
"""Results are cut out of one random text of this length: no two alike, and signed soon."""
GROUP = 8
LEASES = 2
"""A node holds: one that it works on, one fetched ahead."""
LEASE_SAMPLES = 8
MANIFEST, DIGEST = ManifestHash(hash_of(b"manifest")), StateDigest(hash_of(b"digest"))


@dataclass(slots=True)
class Node:
    identity: Identity
    requests: list[bytes]
    grants: list[bytes] = field(default_factory=list)


class Fleet:
    """`ask_all`, then `sign_all`, then send `results`."""

    def __init__(self, ledger: Ledger, answers: Answers, nodes: list[Node], tokens: int) -> None:
        self.ledger, self.answers, self.nodes, self._tokens = ledger, answers, nodes, tokens
        self.results: list[tuple[Node, bytes]] = []
        """One signed result each, as a Submit; in random order, so that no node's come in a row."""
        self.receipts: list[bytes] = []

    async def ask_all(self) -> None:
        """Every node asks for its leases, one after the other."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self._ask, node)

    async def _ask(self, node: Node) -> None:
        for request in node.requests:
            node.grants.append(await self.ask(node, request))

    async def ask(self, node: Node, message: bytes) -> bytes:
        """A message of a node as it came from its stream, and the reply as it leaves."""
        return encode(await self.answers.answer(node.identity.peer, decode(message, Request)))

    def sign_all(self) -> None:
        rng = random.Random(0)
        words = tuple(rng.choices(range(3, VOCABULARY), k=TEXT_TOKENS + self._tokens))
        logprobs = tuple(-rng.random() for _ in words)
        for node in self.nodes:
            for lease in [decode(decode(grant, Grant).lease.body, Lease) for grant in node.grants]:
                for sample in lease.samples:
                    start = rng.randrange(TEXT_TOKENS)
                    text = slice(start, start + self._tokens)
                    result = _result(lease, sample, words[text], logprobs[text])
                    self.results.append((node, encode(Submit((seal(node.identity, result),), 1000.0))))
        rng.shuffle(self.results)


def _result(lease: Lease, sample: LeaseSample, words: tuple[int, ...], logprobs: tuple[float, ...]) -> SampleResult:
    return SampleResult(
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
        tokens=(*words[1:], STOP),
        logprobs=logprobs,
        finish="stop",
    )


@asynccontextmanager
async def open_fleet(
    folder: Path, nodes: int, tokens: int, *, max_samples: int = LEASE_SAMPLES
) -> AsyncIterator[Fleet]:
    """A host with one published version and one step of prompts, and `nodes` members that have yet to ask for work."""
    folder.mkdir()
    ledger = Ledger.open(folder / "ledger.sqlite")
    try:
        # a lease outlives the signing of all results, which is not what is measured
        options = LeaseOptions(min_lease_samples=max_samples, max_lease_samples=max_samples, min_lease_seconds=600)
        door = PoolDoor(WorkPool(ledger.run, ledger.secret, ledger.epoch, options), ledger)
        members = Membership(SWARM, HOST.admit, Generation(1), Epoch(1), ("127.0.0.0/8",))
        answers = _answers(members, door)
        seq = await ledger.reserve_seq(Version(0))
        await ledger.commit([PublicationCompleted(seq, MANIFEST, DIGEST)])
        await door.handle(VersionPublished(Version(0), MANIFEST, DIGEST))
        await door.handle(_work(2 * LEASES * max_samples * nodes // GROUP, tokens))
        yield Fleet(ledger, answers, [_member(members, ledger, max_samples) for _ in range(nodes)], tokens)
    finally:
        ledger.close()


def _answers(members: Membership, door: PoolDoor) -> Answers:
    generation = Generation(1)
    delegation = Delegation(SWARM, generation, HOST.publish.peer, HOST.admit.peer, HOST.lease.peer, (HOST.node.peer,))
    charter = Charter(seal(ROOT, delegation))
    answers = Answers(SWARM, HOST, charter, generation, members, door, Output(as_json=True))
    newest = Newest(Seq(1), Version(0), ArtifactId(bytes(32)), MANIFEST, DIGEST, "snapshot")
    answers.newest = lambda: newest
    return answers


def _work(prompts: int, tokens: int) -> SubmitPrompts:
    rng = random.Random(2)
    texts = tuple(tuple(rng.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)) for _ in range(prompts))
    return SubmitPrompts(Step(0), texts, GROUP, Sampling(1.0, tokens, VOCABULARY, (STOP,)))


def _member(members: Membership, ledger: Ledger, max_samples: int) -> Node:
    """A new node that has joined, with its requests signed."""
    identity = Identity.generate()
    record = PeerRecord(SWARM, identity.peer, 1, ("/ip4/127.0.0.1/tcp/4001",), ("127.0.0.1:4002",), 1000)
    refusal = members.join(identity.peer, Join(SWARM, seal(identity, record), 1, 1, bytes(32)), now=boottime())
    assert refusal is None, refusal
    request = LeaseRequest(bytes(32), ledger.run, Version(0), MANIFEST, DIGEST, 1000.0, max_samples)
    return Node(identity, [encode(SignedLeaseRequest(seal(identity, request))) for _ in range(LEASES)])
