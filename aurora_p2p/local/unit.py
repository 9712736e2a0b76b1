"""A systemd user unit for a daemon: its text, and writing and removing it.

    render_unit(unit)            pure: the text
    install_unit / remove_unit   one file in ~/.config/systemd/user, marked as ours; a file without the mark is left

Hardened as far as a user's own units can be without namespaces, which some distributions forbid to users: no new
privileges, no core dumps (keys are in memory), a closed list of system calls' architectures and address families.
Nothing here calls systemctl: the person is told what to type.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.local.files import write_durably

MARK = "# Written by `{program} install`; `{program} uninstall` removes it."
STOP_MARGIN_SECONDS = 30
"""Past the time a daemon takes to drain: its children's own ends and a slow disk, before systemd kills."""
FINAL_STATUSES = (2, 64, 66, 77)
"""A wrong setting, a damaged ticket, a checkpoint that does not fit, a refusal: starting again changes nothing."""
RESTART_SECONDS = 10
MAX_RESTART_SECONDS = 300
HARDENED = (
    "UMask=0077",
    "LimitCORE=0",
    "LimitNOFILE=65536",
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "SystemCallArchitectures=native",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
BACKOFF_SINCE = 254
"""The first systemd that lets the pause between restarts grow (RestartSteps=)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What differs between the programs. words: the command line, its first word absolute. Bytes, seconds."""

    program: str
    description: str
    words: tuple[str, ...]
    drain_seconds: float
    background: bool
    """Whether it yields to everything else on the machine: processor, disk, memory."""
    memory_high: int = 0
    systemd: int = BACKOFF_SINCE

    @property
    def name(self) -> str:
        return f"{self.program}.service"


def render_unit(unit: Unit) -> str:
    """The text of the unit file."""
    lines = [
        MARK.format(program=unit.program),
        "[Unit]",
        f"Description={_plain(unit.description)}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(exec_word, unit.words))}",
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        *_backoff(unit.systemd),
        f"RestartPreventExitStatus={' '.join(map(str, FINAL_STATUSES))}",
        "# SIGTERM to the daemon alone: it hands its leases back and ends its children itself.",
        "KillMode=mixed",
        f"TimeoutStopSec={unit.drain_seconds + STOP_MARGIN_SECONDS:.0f}",
        "# A child that runs out of memory is replaced by the daemon.",
        "OOMPolicy=continue",
        *(_background(unit.memory_high) if unit.background else []),
        *HARDENED,
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines)


def _backoff(systemd: int) -> list[str]:
    if systemd < BACKOFF_SINCE:
        return []
    return ["RestartSteps=6", f"RestartMaxDelaySec={MAX_RESTART_SECONDS}"]


def _background(memory_high: int) -> list[str]:
    lines = ["Nice=10", "CPUWeight=20", "IOSchedulingClass=idle", "IOWeight=20", "OOMScoreAdjust=500"]
    return [*lines, f"MemoryHigh={memory_high}"] if memory_high else lines


def exec_word(word: str) -> str:
    """One word of a command line, quoted for ExecStart=. Raises UsageError for what a unit file cannot hold."""
    if any(not letter.isprintable() for letter in word):
        raise UsageError(f"{word!r} cannot be written into a unit file", hint="use a path of printable characters")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./$-]+", escaped) else f'"{escaped}"'


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


def program_words(program: str, module: str) -> tuple[str, ...]:
    """The absolute start of a command line that runs this installation's `program`."""
    beside = Path(sys.executable).with_name(program)
    if beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    return (sys.executable, "-m", module)


def systemd_version() -> int:
    """The number systemctl tells; 0 when there is none, and then no newer setting is written."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return 0
    told = subprocess.run([systemctl, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    found = re.match(r"systemd (\d+)", told)
    return int(found[1]) if found else 0


def unit_folder() -> Path:
    """Where the units of this user lie."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "systemd" / "user"


def unit_path(program: str) -> Path:
    return unit_folder() / f"{program}.service"


def install_unit(unit: Unit) -> Path:
    """Write or replace the unit file. Raises UsageError when a file of that name is not ours, StoreError."""
    path = unit_path(unit.program)
    text = render_unit(unit)
    if os.path.lexists(path) and not is_ours(path, unit.program):
        raise UsageError(f"{path} was not written by `{unit.program} install`", hint="move it away, then install again")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {path.parent}: {error.strerror}") from error
    write_durably(path, text.encode(), mode=0o644)
    return path


def is_ours(path: Path, program: str) -> bool:
    """Whether `install` wrote this file: a regular one that begins with the mark."""
    try:
        return not path.is_symlink() and path.read_text(encoding="utf-8").startswith(MARK.format(program=program))
    except (OSError, UnicodeDecodeError):
        return False


def remove_unit(program: str) -> Path | None:
    """Remove the unit file; None when there is none.

    Raises UsageError while it is enabled (systemd's own link would dangle) or when it is not ours.
    """
    path = unit_path(program)
    if not os.path.lexists(path):
        return None
    if not is_ours(path, program):
        raise UsageError(f"{path} was not written by `{program} install`", hint="remove it yourself")
    enabled = path.parent / "default.target.wants" / path.name
    if os.path.lexists(enabled):
        raise UsageError(f"{path.name} is still enabled", hint=f"systemctl --user disable --now {path.name}")
    try:
        path.unlink()
    except OSError as error:
        raise StoreError(f"cannot remove {path}: {error.strerror}") from error
    return path
