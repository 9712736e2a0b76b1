"""One data plane of a host or a node, as a process: `python -m benchmarks.swarm_net_node CONFIG`.

What it runs is what a daemon runs of it: the driver with its bulk child, an artifact store, and the exchange machine,
or for comparison a static plan (swarm_net_plans.py). There is no control plane: everybody's record is made from
CONFIG (msgspec JSON of `Config`), and node 0 is the origin.

Lines of JSON on stdin and stdout; CLOCK_MONOTONIC seconds are the same in all namespaces:
    {"do": "prepare", "seq", "bytes"}               -> {"said": "prepared", "seq"}              (the origin)
    {"do": "publish", "seq", "seconds"}             -> {"said": "published", "seq", "at"}       (the origin)
                                                    -> {"said": "done", "seq", "at"}            (each node)
    {"do": "status", "seq"}                         -> {"said": "status", ...}
    {"do": "retire", "seq"}                            forget the artifact
The end of stdin ends the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.artifact.writer import ArtifactWriter
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.clock import boottime
from aurora_p2p.net.drive import ExchangeDriver, open_exchange
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.exchange import Exchange, ExchangeConfig
from aurora_p2p.swarm.roster import RosterView, open_roster
from aurora_p2p.testing.netlab import NETWORK, Access
from aurora_p2p.types import NO_BASE, ArtifactId, Epoch, Generation, PeerId, RunId, Seq, StateDigest, SwarmId, Version
from aurora_p2p.wire.bulk import MAX_LANES
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.manifest import Header
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trust import Member, PeerRecord, Roster
from benchmarks.swarm_net_plans import StaticPlan, children_of

SEGMENT_BYTES: Final = 1 << 18
PIECES = 16
"""An artifact is produced in so many pieces: a codec block each, more or less."""
PORT = 4102
QUOTA_BYTES = 1 << 30
LINE_BYTES = 1 << 16


class Config(msgspec.Struct, frozen=True):
    """What every process of a swarm is told. number: which of them this is."""

    number: int
    folder: str
    addresses: list[str]
    lines: list[Access]
    policy: str = "ours"
    wan_lanes: int = MAX_LANES
    """Connections of a link between regions."""

    def member(self, number: int) -> Identity:
        return Identity(hashlib.sha256(f"member {number}".encode()).digest())


PUBLISHER = Identity(hashlib.sha256(b"publisher").digest())
ADMIT = Identity(hashlib.sha256(b"admit").digest())
SWARM = SwarmId(str(PUBLISHER.peer))


@dataclass
class Process:
    config: Config
    driver: ExchangeDriver
    store: ArtifactStore
    seqs: dict[ArtifactId, int] = field(default_factory=dict)
    body: bytes = b""
    """Of the next artifact."""
    pushes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    async def follow(self) -> None:
        """Accept what is announced, say what has completed."""
        async for notice in self.driver.notices:
            match notice:
                case ev.Announced(manifest):
                    self.seqs[manifest.artifact] = manifest.header.seq
                    await trio.to_thread.run_sync(self.store.create, manifest.signed_header)
                    await self.driver.feed(ev.Accept(manifest.artifact))
                case ev.Completed(artifact):
                    say("done", seq=self.seqs[artifact], at=time.monotonic())
                case ev.Refused(_, reason) | ev.Banned(_, _, reason):
                    self.refused[reason] += 1
                case _:
                    self.refused[type(notice).__name__] += 1

    async def obey(self) -> None:
        """The commands of stdin, until it ends."""
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
            rest = b""
            while piece := await stream.receive_some(LINE_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    await self._obey(json.loads(line))

    async def _obey(self, command: Mapping[str, Any]) -> None:
        match command["do"]:
            case "prepare":
                self.body = os.urandom(command["bytes"])
                say("prepared", seq=command["seq"])
            case "publish":
                await self._publish(command["seq"], command["seconds"])
            case "status":
                say("status", **await self._status(command["seq"]))
            case "retire":
                for artifact in [one for one, seq in self.seqs.items() if seq == command["seq"]]:
                    await self.driver.feed(ev.Retire(artifact))
                    await trio.to_thread.run_sync(self.store.retire, artifact)
                    del self.seqs[artifact]

    async def _publish(self, seq: int, seconds: float) -> None:
        """Cut-through: each piece is announced once it is on disk, evenly over `seconds`."""
        body, size = self.body, len(self.body)
        step = -(-size // PIECES)
        at = time.monotonic()
        writer = ArtifactWriter(header(seq, size), PUBLISHER, self.store)
        self.seqs[writer.artifact] = seq
        await self.driver.feed(ev.Publish(writer.manifest))
        for number, start in enumerate(range(0, size, step), 1):
            await trio.sleep_until(trio.current_time() + at + seconds * number / PIECES - time.monotonic())
            new = await trio.to_thread.run_sync(writer.add, body[start : start + step])
            await self.driver.feed(ev.Produced(writer.artifact, new))
        last = await trio.to_thread.run_sync(lambda: writer.finish(StateDigest(bytes(32)), now=boottime()))
        await self.driver.feed(ev.Produced(writer.artifact, last, size % SEGMENT_BYTES or None))
        await self.driver.feed(ev.Finished(writer.artifact))
        say("published", seq=seq, at=at)

    async def _status(self, seq: int) -> dict[str, Any]:
        """What passed through here of one artifact, and the hash of what is on disk."""
        artifact = next((one for one, known in self.seqs.items() if known == seq), None)
        status = self.driver.status()
        passages = [one for one in status["artifacts"] if artifact and one["artifact"] == artifact.hex()]
        path = self.store.body_path(artifact) if artifact else None
        digest = await trio.to_thread.run_sync(lambda: hash_of(path.read_bytes()).hex()) if path else ""
        return {
            "number": self.config.number,
            "linked": len(self.driver.linked),
            "lanes": [peer["lanes"] for peer in status["peers"]],
            "passage": passages[0] if passages else {},
            "received_bytes": status["received_bytes"],
            "digest": digest,
            "pushes": dict(self.pushes),
            "refused": dict(self.refused),
            "handshakes_refused": status["handshakes_refused"],
        }


def say(what: str, **fields: Any) -> None:
    print(json.dumps({"said": what, **fields}), flush=True)


def header(seq: int, size: int) -> Header:
    return Header(
        format=1,
        swarm=SWARM,
        run=RunId(bytes(16)),
        version=Version(seq),
        seq=Seq(seq),
        nonce=os.urandom(16),
        kind="snapshot",
        base_version=NO_BASE,
        base_manifest=b"",
        base_digest=b"",
        layout=bytes(32),
        segment_bytes=SEGMENT_BYTES,
        size_bound=size + SEGMENT_BYTES,
        class_map=b"",
        tensors=(),
        model=None,
    )


def roster_of(config: Config) -> RosterView:
    """Everybody, with regions as the host would have assigned them, and no claim of upload: it must be observed."""
    members = []
    for number, (address, line) in enumerate(zip(config.addresses, config.lines, strict=True)):
        me = config.member(number)
        record = PeerRecord(SWARM, me.peer, 1, (), (f"{address}:{PORT}",), up_kbps=0)
        members.append(Member(seal(me, record), line.region, False))
    signed = seal(ADMIT, Roster(SWARM, Generation(1), Epoch(1), tuple(members)))
    return open_roster(signed, swarm=SWARM, admit=ADMIT.peer)


class Counting:
    """Counts the pushes that arrive, by kind: which role this node plays."""

    def __init__(self, machine: Any, pushes: Counter[str]) -> None:
        self._machine, self._pushes = machine, pushes

    def handle(self, event: ev.Event, *, now: float) -> list[ev.Effect]:
        if isinstance(event, ev.SegmentIn):
            self._pushes[event.frame.push or "pulled"] += 1
        effects: list[ev.Effect] = self._machine.handle(event, now=now)
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)


def policy_of(config: Config, pushes: Counter[str]) -> Any:
    """What decides at this node, by the policy; counts what comes in."""
    if config.policy == "ours":
        me = config.member(config.number).peer
        return Counting(Exchange(ExchangeConfig(SWARM), me, random.SystemRandom()), pushes)
    children = children_of(config.policy, config.lines).get(config.number, [])
    return Counting(StaticPlan([config.member(child).peer for child in children]), pushes)


async def serve(config: Config) -> None:
    home = Path(config.folder) / f"node{config.number}"
    me, pushes = config.member(config.number), Counter[str]()
    with ArtifactStore(home / "artifacts", QUOTA_BYTES) as store:
        async with open_exchange(
            identity=me,
            swarm=SWARM,
            store=store,
            spool=home / "spool",
            listen=f"{config.addresses[config.number]}:{PORT}",
            local=(NETWORK,),
            wan_lanes=config.wan_lanes,
            log=home / "bulk.log",
            machine=policy_of(config, pushes),
        ) as driver:
            process = Process(config, driver, store, pushes=pushes)
            hosts: frozenset[PeerId] = frozenset({config.member(0).peer})
            await driver.feed(ev.TrustChanged(PUBLISHER.peer, hosts, generation=1))
            await driver.feed(ev.RosterChanged(roster_of(config)))
            say("ready")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.follow)
                await process.obey()
                nursery.cancel_scope.cancel()


def main() -> None:
    trio.run(serve, msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config))


if __name__ == "__main__":
    main()
