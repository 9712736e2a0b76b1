"""Small disks for real programs: a tmpfs of its own where this user may mount one, else a disk that refuses on purpose.

Both end in the same place of the code, an ENOSPC from a system call: nothing is skipped for want of rights.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aurora_p2p.testing.faults import disk_full, plan

SIZE_MIB = 80
"""The 64 MiB that a store leaves free for others, and some."""
REFUSALS = 12
"""Writes that a disk refuses which is only said to be full: seconds, with the pauses between attempts."""


@dataclass
class SmallDisk:
    """A folder that `fill` makes full and `free` makes room in; `env` is for the program that lives there."""

    folder: Path
    mounted: bool
    env: Mapping[str, str] = field(default_factory=dict)

    def fill(self, leave_mib: int = 0) -> None:
        """Leave so much, or nothing at all."""
        if not self.mounted:
            return  # the plan in `env` refuses by itself
        if leave_mib:
            free = shutil.disk_usage(self.folder).free
            (self.folder / "filler").write_bytes(bytes(free - leave_mib * 2**20))
            return
        with (self.folder / "filler").open("ab", buffering=0) as filler:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        if self.mounted:
            (self.folder / "filler").unlink()


@contextmanager
def small_disk(folder: Path, refuse: str) -> Iterator[SmallDisk]:
    """A small disk at `folder`. refuse: glob of the files whose writes are refused where no file system can be mounted.

    It is unmounted whatever happens; programs that use it must have ended.
    """
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0700", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    if not mounted:
        rules = (disk_full("write", refuse, hit=hit) for hit in range(20, 20 + REFUSALS))
        yield SmallDisk(folder, False, plan(*rules).environment())
        return
    try:
        yield SmallDisk(folder, True)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
