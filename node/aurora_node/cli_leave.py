"""`aurora-node leave`: stop working for a swarm, and remove what this machine kept for it.

Only names that this program writes are removed, and only below a folder that is a node's home. A link is never
followed: one inside is removed itself, and a swarm's folder that is one is refused.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from aurora_node.cli_setup import CHILD_LOGS, CONFIG, KEY, SWARMS, TICKET, read_ticket
from aurora_p2p.errors import AuroraError, StoreError, UsageError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.control import ask, daemon_pid, quit_daemon, socket_path
from aurora_p2p.local.log import FOLDER
from aurora_p2p.local.unit import is_ours, unit_path
from aurora_p2p.local.where import disk_bytes

DRAINED_SECONDS = 120.0
OWN = (CONFIG, KEY, TICKET, SWARMS, FOLDER, *CHILD_LOGS, "paused", "control.sock", ".writable", "node.toml.new")
"""Every name that this program writes into its home: `leave --purge` removes these and nothing else."""
ABOUT = """\
Stop working for a swarm: a running daemon hands its leases back and ends, then the
swarm's artifacts, memory and spool are removed. Key and settings stay, so that a later
join has the same identity. --purge removes everything, the identity key included."""
EXAMPLES = """\
  aurora-node leave                  the swarm that this node works for
  aurora-node leave --swarm 12D3...  one of several
  aurora-node leave --purge          everything: asks first"""


def leave_command() -> Command:
    """The row of the table."""
    return Command("leave", "stop, and remove what was kept for a swarm", _leave, _arguments, ABOUT, EXAMPLES)


def _arguments(leave: argparse.ArgumentParser) -> None:
    leave.add_argument("--swarm", metavar="TICKET", help="which one: ticket, swarm id or its last 16 letters")
    leave.add_argument("--purge", action="store_true", help="remove everything, the identity key included")
    leave.add_argument("--yes", action="store_true", help="do not ask")


def _leave(home: Path, options: argparse.Namespace) -> None:
    home = _home(home)
    chosen = [] if options.purge else [_swarm_folder(home, options.swarm)]
    _confirm(home, options, chosen)
    socket = socket_path(home, "control")
    elsewhere = chosen and _running(home) not in ("", chosen[0].name)  # it works for another swarm: let it
    if daemon_pid(socket) is not None and not elsewhere:
        print("asking the daemon to hand its leases back and end", flush=True)
        quit_daemon(socket, DRAINED_SECONDS)
    if options.purge:
        chosen = [home / name for name in OWN if (home / name).is_symlink() or (home / name).exists()]
    freed = sum(_remove(path) for path in chosen)
    print(f"removed {freed:,} bytes")
    if is_ours(unit_path("aurora-node"), "aurora-node"):
        print("the systemd unit is still there: `aurora-node uninstall` removes it")
    if options.purge:
        _close(home)


def _home(home: Path) -> Path:
    """The folder itself. Raises UsageError when it is not the home of a node."""
    folder = home.resolve()
    marks = [folder / KEY, folder / CONFIG]
    if folder in (Path("/"), Path.home().resolve()) or not any(mark.is_file() for mark in marks):
        raise UsageError(f"{home} is not the home of a node: nothing is removed", hint="aurora-node where")
    return folder


def _swarm_folder(home: Path, wanted: str | None) -> Path:
    if (home / SWARMS).is_symlink():
        raise UsageError(f"{home / SWARMS} is a link: nothing is removed", hint="remove what it points to yourself")
    known = sorted(path.name for path in (home / SWARMS).glob("*"))
    name = _named(wanted) if wanted else _running(home) or (known[0] if len(known) == 1 else "")
    if not name and known:
        raise UsageError(f"{len(known)} swarms are here: which one?", hint=f"--swarm {' | '.join(known)}")
    if name not in known:
        raise UsageError(
            f"nothing is kept here for {f'swarm ...{name}' if name else 'any swarm'}", hint="aurora-node where"
        )
    folder = home / SWARMS / name
    if folder.is_symlink():
        raise UsageError(f"{folder} is a link: nothing is removed", hint="remove what it points to yourself")
    return folder


def _named(wanted: str) -> str:
    """A swarm's folder is named by the last 16 letters of its id (daemon.py)."""
    return wanted if len(wanted) == 16 and wanted.isalnum() else read_ticket(wanted).swarm[-16:]


def _running(home: Path) -> str:
    """The swarm of the running daemon; empty when none runs or it does not tell."""
    try:
        return str(ask(socket_path(home, "control"), "status").get("swarm", ""))[-16:]
    except AuroraError:
        return ""


def _confirm(home: Path, options: argparse.Namespace, chosen: list[Path]) -> None:
    if options.yes:
        return
    what = f"everything in {home}, the identity key included" if options.purge else str(chosen[0])
    if not sys.stdin.isatty():
        if options.purge:
            raise UsageError(f"this removes {what}", hint="add --yes")
        return
    print(f"this removes {what}")
    if input("go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing is removed")


def _remove(path: Path) -> int:
    """Remove a file, a link or a folder; the bytes that were on the disk."""
    nbytes = disk_bytes(path)
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise StoreError(f"cannot remove {error.filename or path}: {error.strerror}", hint="try again") from error
    return nbytes


def _close(home: Path) -> None:
    """Remove the home itself when nothing of somebody else's is in it."""
    left = sorted(path.name for path in home.iterdir())
    if left:
        print(f"kept {home}: not ours: {', '.join(left[:8])}")
    else:
        home.rmdir()
