"""A swarm of one in this process: the host's side of wire/trainer.py over a real Unix socket, with real weights.

Publications are decoded and applied by the real codec. A step is sampled with the oldest version that its lag allows
and that is held once its prompts are known: a swarm that generates as early as it may.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.delta.apply import stage, write
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
        self.begun: list[BeginPublish] = []
        self.aborted: list[str] = []
        self.waits = 0
        self.refuse = ""
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
            except EOFError:
                channel.close()

    def _answer(self, request: TrainerRequest, payload: bytes) -> Record | None:
        match request:
            case Attach():
                return Attached(SwarmId(NODE), RunId(bytes(16)), self.version, self.digest, 1024)
            case BeginPublish():
                self.begun.append(request)
                self._pieces = []
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
            case AskStatus():
                return StatusJson('{"nodes": 1}')
        return None

    def _publish(self, begin: BeginPublish, digest: StateDigest) -> Record:
        body = b"".join(self._pieces)
        if self.refuse:
            return Failed(self.refuse, "try again")
        try:
            assert len(body) <= begin.size_bound
            if begin.kind == "snapshot":
                specs = [entry.spec for entry in begin.tensors]
                self.weights = (specs, read_snapshot(specs, [body], digest))
            else:
                specs, bits = self.weights
                assert (begin.base_version, begin.base_digest) == (self.version, self.digest)
                write(stage(specs, [body], bits, self.digest, digest), bits, specs)
            assert begin.layout == layout_id(specs)
        except AuroraError as error:
            return Failed(str(error))
        self.version, self.digest = begin.version, digest
        self._hold()
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
