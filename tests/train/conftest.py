"""A swarm of one in this process: the host's side of wire/trainer.py over a real Unix socket, with real weights.

Publications are decoded and applied by the real codec. A step is sampled with the oldest version that its lag allows
and that is held once its prompts are known: a swarm that generates as early as it may.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.delta.apply import stage, write
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import Bits, layout_id
from aurora_p2p.errors import AuroraError
from aurora_p2p.local.channel import Channel
from aurora_p2p.train.loop import MAX_LAG
from aurora_p2p.types import ManifestHash, Record, RunId, Seq, StateDigest, SwarmId, TensorSpec, Version
from aurora_p2p.wire.codec import hash_of
from aurora_p2p.wire.control import Noted
from aurora_p2p.wire.trainer import (
    AbortPublish,
    AskStatus,
    Attach,
    Attached,
    BeginPublish,
    Body,
    EndPublish,
    Failed,
    Published,
    Rollout,
    Rollouts,
    StatusJson,
    StepDone,
    SubmitPrompts,
    TakeRollouts,
    TrainerRequest,
    Waiting,
)

Weights = tuple[list[TensorSpec], dict[str, Bits]]
Draw = Callable[[Weights, Version, SubmitPrompts], list[Rollout]]
NODE = Identity(bytes(32)).peer


class LocalSwarm:
    """One connection after another is served; `weights` is what a node would hold."""

    def __init__(self, path: Path, draw: Draw) -> None:
        self.path, self._draw = path, draw
        self.weights: Weights = ([], {})
        self.version, self.digest = Version(-1), StateDigest(b"")
        self.deltas = 0
        self.begun: list[BeginPublish] = []
        self.aborted: list[str] = []
        self.waits = 0
        self.refuse = ""
        self.refuse_for = 0
        """How many publications meet a full disk before there is room."""
        self.lose_next_answer = self.cut_next_body = False
        self.stale_heads = 0
        self.lost: tuple[Version, StateDigest] | None = None
        self._pieces: list[bytes] = []
        self._steps: dict[int, SubmitPrompts] = {}
        self._held: dict[int, tuple[Version, Weights]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            channel: Channel[TrainerRequest] = Channel(connection, TrainerRequest)  # type: ignore[arg-type]
            try:
                while True:
                    reply = self._answer(*channel.receive())
                    if reply:
                        channel.send(reply)
            except EOFError:  # the trainer's end, or ours
                channel.close()

    def _answer(self, request: TrainerRequest, payload: bytes) -> Record | None:
        match request:
            case Attach() if self.lost is not None and self.stale_heads:  # it went on with that only later
                self.stale_heads -= 1
                return Attached(SwarmId(NODE), RunId(bytes(16)), *self.lost, 1024)
            case Attach():
                attached = Attached(SwarmId(NODE), RunId(bytes(16)), self.version, self.digest, 1024)
                return msgspec.structs.replace(attached, deltas=self.deltas, following=Version(self.version + 1))
            case BeginPublish():
                self.begun.append(request)
                self._pieces = []
            case Body() if self.cut_next_body:
                self.cut_next_body = False
                raise EOFError("killed here")
            case Body():
                self._pieces.append(payload)
            case AbortPublish(detail):
                self.aborted.append(detail)
                return Noted()
            case EndPublish(digest):
                return self._publish(self.begun[-1], digest)
            case SubmitPrompts():
                self._steps[request.step] = request
                self._hold()
                return Noted()
            case TakeRollouts(step):
                return self._take(step)
            case StepDone():
                return Noted()
            case AskStatus():
                return StatusJson('{"nodes": 1}')
        return None

    def _publish(self, begin: BeginPublish, digest: StateDigest) -> Record:
        body = b"".join(self._pieces)
        if self.refuse_for:
            self.refuse_for -= 1
            return Failed("the disk is full", "make room", retry_seconds=0.01)
        if self.refuse:
            return Failed(self.refuse, "try again")
        try:
            assert len(body) <= begin.size_bound
            if begin.kind == "snapshot":
                specs = [entry.spec for entry in begin.tensors]
                self.weights = (specs, read_snapshot(specs, [body], digest))
            else:
                specs, bits = self.weights
                if (begin.base_version, begin.base_digest) != (self.version, self.digest):
                    return Failed("the delta's base is not the newest publication")
                classes = ClassMap(begin.class_map)
                write(stage(specs, [body], bits, self.digest, digest, classes), bits, specs)
            assert begin.layout == layout_id(specs)
        except AuroraError as error:
            return Failed(str(error))
        self.lost = (self.version, self.digest) if self.lose_next_answer else self.lost
        self.version, self.digest = begin.version, digest
        self._hold()
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise EOFError("killed here")
        return Published(Seq(len(self.begun)), begin.version, ManifestHash(hash_of(body)), len(self._pieces), len(body))

    def _hold(self) -> None:
        """Keep the weights that the steps which may begin now are sampled with."""
        specs, bits = self.weights
        for step in self._steps.keys() - self._held.keys():
            if step - self.version <= MAX_LAG:
                self._held[step] = (self.version, (specs, {name: flat.copy() for name, flat in bits.items()}))

    def _take(self, step: int) -> Record:
        request, (version, weights) = self._steps[step], self._held[step]
        if self.waits:
            self.waits -= 1
            return Waiting(request.step, 0, len(request.prompts) * request.group, "no node has joined")
        samples = self._draw(weights, version, request)
        return Rollouts(request.step, tuple(samples), 1.0, sum(len(sample.tokens) for sample in samples))


@pytest.fixture
def open_swarm(tmp_path: Path) -> Iterator[Callable[[Draw], LocalSwarm]]:
    opened: list[LocalSwarm] = []

    def open_one(draw: Draw) -> LocalSwarm:
        opened.append(LocalSwarm(tmp_path / f"{len(opened)}.sock", draw))
        return opened[-1]

    yield open_one
    for swarm in opened:
        swarm.close()
