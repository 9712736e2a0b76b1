"""The control socket of a daemon: one JSON object a line each way, over a Unix socket inside the 0700 home folder.

    {"command": "status"}  ->  {"ok": true, ...}          {"command": "nonsense"}  ->  {"ok": false, "error": "..."}

Only processes of the same user reach it: the folder is private and the socket is 0600. The asking side needs no trio,
which is imported by the serving side alone: `--help` and `status` answer at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_p2p.errors import AuroraError, PortInUseError, StoreError, UnreachableError
from aurora_p2p.local.unix import reachable

if TYPE_CHECKING:
    import trio

MAX_REQUEST = 1 << 16
REQUEST_SECONDS = 10.0

Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


def socket_path(home: Path, name: str) -> Path:
    """Where a daemon with this home listens."""
    return home / f"{name}.sock"


def open_unix_listener(path: Path) -> trio.SocketListener:
    """Listen at `path`, replacing what a killed process left. Raises PortInUseError when another process listens."""
    import trio

    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(probe):
        try:
            with reachable(path) as where:
                probe.connect(where)
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise PortInUseError(f"another process answers at {path}", hint="stop it first, or use another --home")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as where:
            sock.bind(where)
        path.chmod(0o600)
        sock.listen(16)
    except OSError as error:
        sock.close()
        raise StoreError(f"cannot listen at {path}: {error.strerror}") from error
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


async def serve_control(path: Path, commands: Mapping[str, Handler], *, task_status: Any = None) -> None:
    """Answer control requests until cancelled; started once it listens. Raises PortInUseError."""
    import trio

    listener = open_unix_listener(path)
    if task_status is not None:
        task_status.started()
    try:
        await trio.serve_listeners(partial(_serve_one, commands=commands), [listener])
    finally:
        path.unlink(missing_ok=True)


async def _serve_one(stream: trio.SocketStream, commands: Mapping[str, Handler]) -> None:
    import trio

    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async with stream:
            buffer = b""
            while b"\n" not in buffer and len(buffer) < MAX_REQUEST:
                with trio.move_on_after(REQUEST_SECONDS) as scope:
                    data = await stream.receive_some(MAX_REQUEST)
                if scope.cancelled_caught or not data:
                    return
                buffer += data
            await stream.send_all(json.dumps(await _answer(buffer, commands)).encode() + b"\n")


async def _answer(line: bytes, commands: Mapping[str, Handler]) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {"ok": False, "error": "not a JSON object"}
    command = request.get("command") if isinstance(request, dict) else None
    handler = commands.get(command) if isinstance(command, str) else None
    if handler is None:
        return {"ok": False, "error": f"commands are: {', '.join(sorted(commands))}"}
    try:
        return {"ok": True, **await handler(request)}
    except AuroraError as error:
        return {"ok": False, "error": str(error), "hint": error.hint}
    except Exception:  # a bug in a status costs one answer, not the daemon and its work
        logging.getLogger(__name__).exception("the command %s failed", command)
        return {"ok": False, "error": f"{command} failed", "hint": "this is a bug; its traceback is in the log"}


def ask(path: Path, command: str, **arguments: Any) -> dict[str, Any]:
    """One request to a daemon (blocking). Raises UnreachableError when none runs, AuroraError when it refuses."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(sock):
        try:
            sock.settimeout(REQUEST_SECONDS)
            with reachable(path) as where:
                sock.connect(where)
            sock.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with sock.makefile("rb") as file:
                answer = dict(json.loads(file.readline()))
        except (OSError, ValueError, TypeError) as error:
            raise UnreachableError(f"no daemon answers at {path}", hint=_not_there(path)) from error
    if not answer.pop("ok", False):
        raise AuroraError(str(answer.get("error")), hint=str(answer.get("hint", "")))
    return answer


def _not_there(path: Path) -> str:
    """What to do about a daemon that does not answer."""
    if path.parent.is_dir():
        return "is it running? is --home the same?"
    return f"there is no {path.parent}: start it first (--help shows how), or name its folder with --home"


def daemon_pid(path: Path) -> int | None:
    """The process that listens at `path`, or None when nobody does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(sock):
        sock.settimeout(REQUEST_SECONDS)
        try:
            with reachable(path) as where:
                sock.connect(where)
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    pid: int = struct.unpack("3i", raw)[0]
    return pid


def quit_daemon(path: Path, seconds: float) -> bool:
    """Ask the daemon at `path` to drain and end, and wait until its process is gone; False when none runs.

    Raises UnreachableError when it still runs after `seconds`, AuroraError when it refuses.
    """
    pid = daemon_pid(path)
    if pid is None:
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ask(path, "quit")
        gone, _, _ = select.select([process], [], [], seconds)
    finally:
        os.close(process)
    if not gone:
        raise UnreachableError(f"process {pid} has not ended within {seconds:.0f} s", hint="look at its log; try again")
    return True


def render_caps(answer: Mapping[str, Any]) -> str:
    """The answer to a `caps` command, for a person."""
    rates = [(name, answer[f"{name}_kib"]) for name in ("up", "down")]
    return "\n".join(f"{name}: {rate:g} KiB/s" if rate else f"{name}: no cap" for name, rate in rates)
