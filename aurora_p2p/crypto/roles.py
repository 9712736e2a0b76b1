"""The four keys of a swarm and where they live on the host.

root     root.key      may be moved offline after `init`; signs delegations only, never a transport key
publish  publish.key   headers, pages, final pages, HEAD, Abort
admit    admit.key     the roster
lease    lease.key     leases, refusals, receipts
node     node.key      the host's own transport identity (libp2p and TLS)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import StoreError


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """The delegated keys a running host holds (not the root)."""

    publish: Identity
    admit: Identity
    lease: Identity
    node: Identity

    @classmethod
    def create(cls, folder: Path) -> RoleKeys:
        """Make four new keys, mode 0600. Raises StoreError when one exists already."""
        keys = cls(*(Identity.generate() for _ in range(4)))
        for name in ("publish", "admit", "lease", "node"):
            identity: Identity = getattr(keys, name)
            identity.save(folder / f"{name}.key")
        return keys

    @classmethod
    def load(cls, folder: Path) -> RoleKeys:
        missing = [name for name in ("publish", "admit", "lease", "node") if not (folder / f"{name}.key").exists()]
        if missing:
            raise StoreError(f"{folder} lacks {', '.join(missing)}.key", hint="run `aurora-host init` first")
        return cls(*(Identity.load(folder / f"{name}.key") for name in ("publish", "admit", "lease", "node")))
