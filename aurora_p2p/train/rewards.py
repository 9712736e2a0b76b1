"""Rewards in a killable child process without a network.

    trainer                                child (python -m aurora_p2p.train.rewards --fd N)
    Begin(task, limits)                ->  Ready(network)
    Score(items)                       ->  Scored per item, in order

The task's code is the trainer's own; the tokens it reads came from strangers. The child therefore has limits on memory,
CPU and wall-clock time per item, no environment, no core dumps, and a network namespace of its own where the system
permits one (`RewardChild.network` says). An item that takes too long, that ends the child, or whose scoring raises has
no reward (None); the child is started again and the other items are scored as if nothing had happened. Items are sent
in portions of bounded size, so that the length of some answers is not charged to the memory of all.
Not covered: the file system, which the child may use as the trainer's user, and a task that runs what it reads: such
code may answer in the scorer's place.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Literal

from msgspec import Meta

from aurora_p2p.errors import ChildError, WireError
from aurora_p2p.local.channel import Channel
from aurora_p2p.local.child import inherited_channel
from aurora_p2p.local.output import clean
from aurora_p2p.train.tasks import Task, Tokens
from aurora_p2p.types import Record
from aurora_p2p.wire.limits import U62, Seconds, Text

START_SECONDS = 30.0
"""Longest start of the child: an interpreter and the task's imports, on a busy machine."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
"""From linux/sched.h; os.unshare exists from Python 3.12 on."""
OPEN_FILES = 64
"""Descriptors the child may hold: its socket, and modules that scorers import late."""
PORTION_TOKENS = 1 << 20
"""Of one Score: about 60 MB of the child's memory while it is decoded."""

Network = Literal["none", "shared"]
Item = tuple[Tokens, Tokens]
"""(prompt, completion)."""


class Begin(Record, frozen=True, tag="begin"):
    task: Text
    memory_bytes: U62
    cpu_seconds: Annotated[int, Meta(ge=1)]
    wall_seconds: Seconds


class Score(Record, frozen=True, tag="score"):
    items: tuple[Item, ...]


class Ready(Record, frozen=True, tag="ready"):
    network: Network


class Scored(Record, frozen=True, tag="scored"):
    """reward None: the scorer raised, or its result is not a finite number."""

    reward: float | None


@dataclass(frozen=True, slots=True)
class RewardLimits:
    """What one item may cost."""

    wall_seconds: Seconds = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 1 << 30
    """Address space of the child."""
    max_tokens: int = 32_768
    """Longer completions get no reward and are not shown to the scorer."""


class RewardChild:
    """Blocking owner of the child. Not for several threads."""

    def __init__(self, task: Task, limits: RewardLimits = RewardLimits()) -> None:
        """Start the child. Raises ChildError when the task cannot be imported there."""
        self._task, self._limits = task.path, limits
        self.restarts = 0
        self._start()

    def score(self, batch: Sequence[Item]) -> list[float | None]:
        """Rewards in the batch's order; None where there is none."""
        short = [item for item in batch if len(item[1]) <= self._limits.max_tokens]
        rewards: list[float | None] = []
        while len(rewards) < len(short):
            portion = _portion(short, len(rewards))
            scored = self._until_trouble(portion)
            rewards += scored
            if len(scored) < len(portion):
                rewards.append(None)
                self.restarts += 1
                self._stop()
                self._start()
        each = iter(rewards)
        return [next(each) if len(tokens) <= self._limits.max_tokens else None for _, tokens in batch]

    def close(self) -> None:
        self._stop()

    def __enter__(self) -> RewardChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _until_trouble(self, items: Sequence[Item]) -> list[float | None]:
        """Rewards of a prefix of the items: all of them, or those before the one that hung or killed the child."""
        rewards: list[float | None] = []
        try:
            self._channel.send(Score(tuple(items)))
            while len(rewards) < len(items):
                rewards.append(self._receive(self._limits.wall_seconds, Scored).reward)
        except (EOFError, TimeoutError, WireError):
            pass
        return rewards

    def _receive(self, seconds: float, kind: type[Scored]) -> Scored:
        self._socket.settimeout(seconds)
        reply, _ = self._channel.receive()
        if not isinstance(reply, kind):
            raise WireError(f"the reward child sent {type(reply).__name__}")
        return reply

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "aurora_p2p.train.rewards", "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        self._channel: Channel[Ready | Scored] = Channel(self._socket, Ready | Scored)  # type: ignore[arg-type]
        limits = self._limits
        self._socket.settimeout(START_SECONDS)
        try:
            self._channel.send(Begin(self._task, limits.memory_bytes, limits.cpu_seconds, limits.wall_seconds))
            ready, _ = self._channel.receive()
        except (EOFError, TimeoutError, WireError) as error:
            self._stop()
            raise ChildError(f"the reward child for {self._task} did not start", hint="see its traceback") from error
        if not isinstance(ready, Ready):
            raise ChildError("the reward child scored before it was asked")
        self.network: Network = ready.network

    def _stop(self) -> None:
        self._channel.close()
        if self._process.returncode is None:  # its session too: what a scorer started ends with it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _portion(items: Sequence[Item], start: int) -> Sequence[Item]:
    """Items from `start` on that go in one message: at least one, otherwise PORTION_TOKENS at most."""
    end, tokens = start, 0
    while end < len(items):
        tokens += sum(map(len, items[end]))
        if end > start and tokens > PORTION_TOKENS:
            break
        end += 1
    return items[start:end]


def main() -> None:
    """The child: take a task, shut the doors, score until the socket closes."""
    with contextlib.suppress(EOFError):  # the trainer is gone, at whatever moment: nothing is left to do
        _serve(inherited_channel(Begin | Score))  # type: ignore[arg-type]


def _serve(channel: Channel[Begin | Score]) -> None:
    begin, _ = channel.receive()
    if not isinstance(begin, Begin):
        raise SystemExit("the first message names the task")
    task: Task = pkgutil.resolve_name(begin.task)
    network = _leave_network()
    _limit(begin.memory_bytes)
    channel.send(Ready(network))
    while True:
        request, _ = channel.receive()
        if isinstance(request, Score):
            for prompt, tokens in request.items:
                _allow_one_item(begin)
                channel.send(Scored(_score(task, prompt, tokens)))
            signal.setitimer(signal.ITIMER_REAL, 0)


def _score(task: Task, prompt: Tokens, tokens: Tokens) -> float | None:
    try:
        reward = float(task.score(prompt, tokens))
    except Exception as error:  # noqa: BLE001 - the one place where code we did not write runs; any failure is "no reward"
        sys.stderr.write(f"no reward: {type(error).__name__}: {clean(str(error), 400)}\n")
        return None
    return reward if math.isfinite(reward) else None


def _leave_network() -> Network:
    """Move into an empty network namespace: no interface, so no address can be reached."""
    libc = ctypes.CDLL(None)
    isolated = libc.unshare(CLONE_NEWNET) == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    return "none" if isolated else "shared"


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))


def _allow_one_item(begin: Begin) -> None:
    """Renew the CPU limit, which counts from the process's start, and an alarm that also ends an orphan that sleeps."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = math.ceil(usage.ru_utime + usage.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + begin.cpu_seconds, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, 2 * begin.wall_seconds)


if __name__ == "__main__":
    main()
