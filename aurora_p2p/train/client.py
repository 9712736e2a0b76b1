"""The trainer's blocking connection to its swarm host (wire/trainer.py over the host's Unix socket).

One request at a time: a client belongs to one thread. A host that refuses raises RefusedError with its sentence; one
that closes the socket, or does not answer within REPLY_SECONDS, raises UnreachableError. Waiting for rollouts is a
series of short polls, so it may last as long as a swarm needs and still notices a dead host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from aurora_p2p.errors import RefusedError, UnreachableError, WireError
from aurora_p2p.local import faults
from aurora_p2p.local.channel import Channel, connect_local
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.control import socket_path
from aurora_p2p.types import Record, StateDigest, Step
from aurora_p2p.wire.control import Noted, Sampling
from aurora_p2p.wire.trainer import (
    MAX_REWARD,
    AbortPublish,
    AskStatus,
    Attach,
    Attached,
    BeginPublish,
    Body,
    EndPublish,
    Failed,
    HostReply,
    Published,
    Rollouts,
    StatusJson,
    StepDone,
    SubmitPrompts,
    TakeRollouts,
    Waiting,
)

SOCKET_NAME = "trainer"
"""The host listens at socket_path(home, SOCKET_NAME)."""
REPLY_SECONDS = 60.0
"""Longest silence of a host that still lives: it may be syncing a large artifact to a slow disk."""
POLL_SECONDS = 5.0

Reply = TypeVar("Reply", bound=Record)


class SwarmClient:
    """Publish weights, submit prompts, take rollouts."""

    def __init__(self, channel: Channel[HostReply], path: Path) -> None:
        self._channel, self._path = channel, path

    @classmethod
    def open(cls, home_or_socket: Path) -> SwarmClient:
        """Connect to a host by its home folder or its socket. Raises UnreachableError."""
        faults.arm()
        path = socket_path(home_or_socket, SOCKET_NAME) if home_or_socket.is_dir() else home_or_socket
        try:
            channel: Channel[HostReply] = connect_local(path, HostReply, timeout=REPLY_SECONDS)  # type: ignore[arg-type]
        except UnreachableError as error:
            raise UnreachableError(str(error), hint="start the host first: aurora-host run") from error
        return cls(channel, path)

    def reopen(self) -> None:
        """Connect anew, to a host that has started again. Raises UnreachableError; the client can then be reopened."""
        self._channel.close()
        self._channel = SwarmClient.open(self._path)._channel

    def attach(self) -> Attached:
        """The newest complete publication."""
        return self._ask(Attach(), Attached)

    def submit(self, step: Step, prompts: Sequence[tuple[int, ...]], group: int, sampling: Sampling) -> None:
        """Give the prompts of one optimizer step to the swarm, each to be sampled `group` times."""
        self._ask(SubmitPrompts(step, tuple(prompts), group, sampling), Noted)
        faults.reach("prompts.submitted")

    def rollouts(
        self, step: Step, on_wait: Callable[[Waiting], None] | None = None, *, patience_seconds: float = math.inf
    ) -> Rollouts:
        """Every sample of a step, as soon as the last is admitted. on_wait is called after each poll in vain.

        patience_seconds: after that, groups that are not complete are left out, as soon as one is (Rollouts.short_*).
        """
        give_up = boottime() + patience_seconds
        while True:
            left = give_up - boottime()
            self._send(
                TakeRollouts(step, min(left, POLL_SECONDS)) if left > 0 else TakeRollouts(step, POLL_SECONDS, "drop")
            )
            reply = self._receive()
            if isinstance(reply, Rollouts):
                faults.reach("rollouts.taken")
                return reply
            waiting = _expect(reply, Waiting)
            if on_wait:
                on_wait(waiting)

    def step_done(
        self,
        step: Step,
        reward: float,
        *,
        waited_seconds: float,
        trained_seconds: float,
        published_seconds: float,
    ) -> None:
        """Report a finished step for the host's status. reward: mean of the scored samples, NaN when there is none."""
        known = reward if abs(reward) <= MAX_REWARD else None
        self._ask(StepDone(step, known, waited_seconds, trained_seconds, published_seconds), Noted)

    def status(self) -> str:
        """The host's status as JSON."""
        return self._ask(AskStatus(), StatusJson).json

    def begin_publish(self, begin: BeginPublish) -> None:
        """Open a publication. No answer comes before end_publish or abort_publish."""
        self._send(begin)

    def send_body(self, piece: bytes) -> None:
        """The next piece of the open publication."""
        self._send(Body(), piece)

    def end_publish(self, digest: StateDigest) -> Published:
        return self._ask(EndPublish(digest), Published)

    def abort_publish(self, detail: str) -> None:
        self._ask(AbortPublish(detail), Noted)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> SwarmClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Record, kind: type[Reply]) -> Reply:
        self._send(request)
        return _expect(self._receive(), kind)

    def _send(self, request: Record, payload: bytes = b"") -> None:
        try:
            self._channel.send(request, payload)
        except (EOFError, TimeoutError) as error:
            raise self._gone(error) from error

    def _receive(self) -> HostReply:
        try:
            reply, _ = self._channel.receive()
        except (EOFError, TimeoutError) as error:
            raise self._gone(error) from error
        if isinstance(reply, Failed):
            raise RefusedError(reply.detail, hint=reply.hint, retry_seconds=reply.retry_seconds)
        return reply

    def _gone(self, error: Exception) -> UnreachableError:
        what = "does not answer" if isinstance(error, TimeoutError) else "closed the connection"
        return UnreachableError(f"the swarm host at {self._path} {what}", hint="look at the host's log")


def length_bias(rollouts: Rollouts) -> float:
    """Mean tokens of the samples handed out, over that of all that were admitted; 1 when no group was left out.

    Below 1: leaving short groups out prefers short samples. What was never admitted is not in it: it tends to be longer
    still.
    """
    samples, tokens = len(rollouts.samples), rollouts.tokens
    every, of_every = samples + rollouts.short_samples, tokens + rollouts.short_tokens
    return (tokens / samples) / (of_every / every) if tokens else 1.0


def _expect(reply: HostReply, kind: type[Reply]) -> Reply:
    if not isinstance(reply, kind):
        raise WireError(f"the host answered {type(reply).__name__} where {kind.__name__} belongs")
    return reply
