"""`aurora-host init` and `delegate`: root file, role keys, charter and run.toml in one private folder.

The root key signs delegations only. After `init` move root.key to a place that is not on the network; the host runs
without it and needs it again only to sign a new generation.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.errors import StaleError, StoreError, UsageError, WireError
from aurora_p2p.host.config import HostConfig
from aurora_p2p.local.config import make_home, render_config
from aurora_p2p.local.files import write_durably
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.types import Generation, SwarmId
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.signed import open_signed, seal
from aurora_p2p.wire.trust import Charter, Delegation

CHARTER = "charter.bin"
CONFIG = "run.toml"
LEDGER = "ledger.sqlite"
ROOT = "root.key"


def init_host(home: Path, config: HostConfig) -> SwarmId:
    """Make a new swarm in an empty home. Raises UsageError when there is one already."""
    make_home(home)
    if (home / CHARTER).exists() or (home / ROOT).exists():
        raise UsageError(f"{home} already holds a swarm", hint="use another --home, or `aurora-host run` to run it")
    root = Identity.generate()
    root.save(home / ROOT)
    keys = RoleKeys.create(home)
    swarm = SwarmId(root.peer)
    write_charter(home, root, keys, swarm, Generation(1))
    text = render_config(config, f"Swarm host of {swarm}. `aurora-host run --home {home}` reads this file.")
    write_durably(home / CONFIG, text.encode())
    return swarm


def write_charter(home: Path, root: Identity, keys: RoleKeys, swarm: SwarmId, generation: Generation) -> None:
    """Sign and store the delegation of `generation`."""
    delegation = Delegation(swarm, generation, keys.publish.peer, keys.admit.peer, keys.lease.peer, (keys.node.peer,))
    write_durably(home / CHARTER, encode(Charter(seal(root, delegation))))


def delegate(home: Path, root_file: Path) -> Generation:
    """Sign the next generation for the keys in `home` with the root. Raises StaleError for another swarm's root.

    The next one is past every generation that this home's ledger has used, also when the charter is from a backup. The
    ledger is locked while the host runs: StoreError.
    """
    charter, delegation = load_charter(home)
    root = Identity.load(root_file)
    if root.peer != charter.delegation.signer:
        raise StaleError(f"{root_file} is not the root of this swarm", hint=f"the root is {charter.delegation.signer}")
    following = Generation(max(delegation.generation, _generation_used(home)) + 1)
    write_charter(home, root, RoleKeys.load(home), delegation.swarm, following)
    return following


def _generation_used(home: Path) -> Generation:
    if not (home / LEDGER).exists():
        return Generation(0)
    with contextlib.closing(Ledger.open(home / LEDGER)) as ledger:
        return ledger.generation


def load_charter(home: Path) -> tuple[Charter, Delegation]:
    """The stored charter and its delegation. Raises StoreError when `init` has not been run, or the file is damaged."""
    path = home / CHARTER
    if not path.exists():
        raise StoreError(f"{home} holds no swarm", hint=f"run `aurora-host init --home {home}` first")
    try:
        charter = decode(path.read_bytes(), Charter)
        delegation = open_signed(charter.delegation, Delegation, {charter.delegation.signer})
    except WireError as error:
        raise StoreError(f"{path} is damaged: {error}", hint="restore it from a backup, or run `delegate`") from error
    return charter, delegation
