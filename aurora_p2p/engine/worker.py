"""The engine's child process: `python -m aurora_p2p.engine.worker --fd N`, started by client.py.

    receiver (main thread)   reads requests; sets stop flags at once; hands the rest on, in order
    serving thread           load, generate, commit, audit: one at a time, so a commit waits for running generations
    staging thread           stage, beside a generation

An error of errors.py is answered with EngineFailed and the engine goes on. Any other exception is our own bug: it is
printed and ends the process, and the daemon starts a fresh one from its store. When the daemon's end of the socket
closes, the process ends at once, whatever it is doing.

No core dumps (they would hold weights and prompts), no network look-ups by libraries; client.py gives it an empty HOME
and none of the daemon's environment but a short list.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import resource
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from aurora_p2p.engine.names import HOME_PREFIX, SIMULATED, check_engine, rate_of
from aurora_p2p.engine.protocol import Outcome, RolloutEngine
from aurora_p2p.engine.simulated import SimulatedEngine
from aurora_p2p.errors import AuroraError, UsageError, WireError
from aurora_p2p.local.channel import Channel
from aurora_p2p.local.child import inherited_channel
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.faults import arm, reach
from aurora_p2p.types import StateDigest, Version
from aurora_p2p.wire.engine import (
    Audit,
    Close,
    Commit,
    Done,
    EngineFailed,
    EngineRequest,
    EngineStart,
    Generate,
    Generated,
    Load,
    Samples,
    Stage,
    StopGenerating,
)

WAITING_REQUESTS = 64
"""A daemon has a handful of requests open; when it has more, reading its socket pauses."""
DETAIL_CHARACTERS = 500
"""Of an error's sentence; the field takes 512."""
UNEXPECTED_STATUS = 70
"""Exit status after a bug of ours (EX_SOFTWARE)."""

Job = Callable[[], None]


class Worker:
    """Carries out requests on one engine."""

    def __init__(self, engine: RolloutEngine, channel: Channel[EngineRequest]) -> None:
        self._engine, self._channel = engine, channel
        self._stops: dict[int, threading.Event] = {}
        self._serving: queue.Queue[Job] = queue.Queue(WAITING_REQUESTS)
        self._staging: queue.Queue[Job] = queue.Queue(WAITING_REQUESTS)

    def run(self) -> None:
        """Serve until Close. Raises EOFError when the daemon is gone, WireError when it speaks another protocol."""
        for name, jobs in (("serving", self._serving), ("staging", self._staging)):
            threading.Thread(target=_carry_out, args=(jobs,), name=name, daemon=True).start()
        while True:
            request, _ = self._channel.receive()
            if isinstance(request, Close):
                self._channel.send(_done(request.id, None, 0.0))
                return
            self._take(request)

    def _take(self, request: EngineRequest) -> None:
        match request:
            case StopGenerating():
                if stop := self._stops.get(request.generate):
                    stop.set()
                self._channel.send(_done(request.id, None, 0.0))
            case Generate():
                stop = self._stops[request.id] = threading.Event()
                self._serving.put(functools.partial(self._generate, request, stop))
            case Stage(_, header, body, digest):
                work = functools.partial(self._engine.stage, header, Path(body), StateDigest(digest))
                self._staging.put(functools.partial(self._answer, request.id, work))
            case Load(_, header, body, digest, deltas):
                work = functools.partial(self._engine.load, header, Path(body), StateDigest(digest), deltas)
                self._serving.put(functools.partial(self._answer, request.id, work))
            case Commit(_, version, audit):
                work = functools.partial(self._engine.commit, Version(version), audit=audit)
                self._serving.put(functools.partial(self._answer, request.id, work))
            case Audit():
                self._serving.put(functools.partial(self._answer, request.id, self._engine.audit))
            case _:
                self._fail(request.id, UsageError("the engine has been started already"))

    def _answer(self, request_id: int, work: Callable[[], Outcome]) -> None:
        started = boottime()
        try:
            outcome = work()
            reach("engine.answering")
        except AuroraError as error:
            self._fail(request_id, error)
        else:
            self._channel.send(_done(request_id, outcome, boottime() - started))

    def _generate(self, request: Generate, stop: threading.Event) -> None:
        """One reply for each step that finishes samples, then the one with `done`."""
        started = first = last = boottime()
        tokens = 0

        def reply(finished: list[Generated], *, done: bool) -> None:
            rate = tokens / max(last - started, 1e-6)
            served = self._engine.served
            self._channel.send(
                Samples(request.id, served.version, served.digest, tuple(finished), rate, first, last, done)
            )

        try:
            for step in self._engine.generate(request.sampling, request.prompts, request.samples, stop):
                last = boottime()
                first = first if tokens else last
                tokens += step.tokens
                if step.finished:
                    reach("engine.generated")
                    reply(step.finished, done=False)
            reply([], done=True)
        except AuroraError as error:
            self._fail(request.id, error)
        del self._stops[request.id]

    def _fail(self, request_id: int, error: AuroraError) -> None:
        self._channel.send(EngineFailed(request_id, type(error).__name__, str(error)[:DETAIL_CHARACTERS]))


def _done(request_id: int, outcome: Outcome | None, seconds: float) -> Done:
    if outcome is None:
        return Done(request_id, Version(0), b"", audited=False, changed=0, seconds=seconds)
    return Done(request_id, outcome.version, outcome.digest, outcome.audited, outcome.changed, seconds)


def _carry_out(jobs: queue.Queue[Job]) -> None:
    while True:
        jobs.get()()


def _end_process(failure: threading.ExceptHookArgs) -> None:
    """A thread that fails takes the process with it: a half-alive engine would answer nothing."""
    if not isinstance(failure.exc_value, EOFError):
        traceback.print_exception(failure.exc_value)
    os._exit(UNEXPECTED_STATUS)


def _open_engine(start: EngineStart) -> RolloutEngine:
    """The engine that was asked for. Raises UsageError when there is none, or the device is not there."""
    check_engine(start.engine)
    if start.engine.partition(":")[0] == SIMULATED:
        return SimulatedEngine(rate_of(start.engine), max_batch=start.max_batch)
    return _open_hf(start)


def _open_hf(start: EngineStart) -> RolloutEngine:
    """Imports torch, with its thread count already set, and all that a model needs (seconds) before one is there."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(start.threads)
    import torch

    from aurora_p2p.engine.hf import HfEngine
    from aurora_p2p.engine.model import import_models

    torch.set_num_threads(start.threads)
    if start.device != "cpu" and not (start.device.startswith("cuda") and torch.cuda.is_available()):
        raise UsageError(f"this machine has no device {start.device!r}", hint="use cpu")
    import_models()
    return HfEngine(device=start.device, max_batch=start.max_batch)


def _serve(channel: Channel[EngineRequest]) -> None:
    start, _ = channel.receive()
    if not isinstance(start, EngineStart):
        raise WireError("the first request must start the engine")
    try:
        engine = _open_engine(start)
    except UsageError as error:
        channel.send(EngineFailed(start.id, "UsageError", str(error)))
        return
    channel.send(_done(start.id, None, 0.0))
    Worker(engine, channel).run()


def main() -> None:
    arm()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.excepthook = _end_process
    # os._exit: the interpreter would wait for a generation that nobody wants any more.
    with contextlib.suppress(EOFError):
        _serve(inherited_channel(EngineRequest))  # type: ignore[arg-type]
    _leave_home()
    os._exit(0)


def _leave_home() -> None:
    """Remove the temporary HOME: a daemon that was killed cannot. Nothing else is ever removed."""
    home = Path(os.environ.get("HOME", "/"))
    if home.name.startswith(HOME_PREFIX) and home.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
