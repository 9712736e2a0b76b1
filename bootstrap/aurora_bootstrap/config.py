"""What an operator may set for a bootstrap: all of it on the command line, there is no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aurora_p2p.local.config import default_home, setting


@dataclass(frozen=True, slots=True)
class BootstrapConfig:
    """Settings of `aurora-bootstrap serve`."""

    home: Path
    """Folder, mode 0700, that keeps the key: with it the bootstrap keeps its peer id and so its address."""
    listen: tuple[str, ...] = setting(("/ip4/0.0.0.0/tcp/4101",), "libp2p TCP multiaddrs to listen on.")
    max_registrations: int = setting(16_384, "Registrations kept, all swarms together; each is under 2 KB of memory.")
    max_per_swarm: int = setting(2_048, "Registrations kept for one swarm: twice the largest roster.")

    @classmethod
    def default_home(cls) -> Path:
        return default_home("bootstrap")
