"""A running bootstrap: one libp2p host that answers rendezvous requests from memory, until SIGTERM or SIGINT.

It keeps nothing but its key: peers register again within minutes after a restart. It signs nothing and is trusted
with nothing; at worst it hides peers.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence

import trio

from aurora_bootstrap.config import BootstrapConfig
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.config import make_home
from aurora_p2p.net.host import open_control_host
from aurora_p2p.net.rendezvous import Registry, serve_rendezvous


def serve(config: BootstrapConfig, *, as_json: bool) -> None:
    """Run until a signal ends it. Raises StoreError, UsageError, PortInUseError."""
    trio.run(_serve, config, as_json)


async def _serve(config: BootstrapConfig, as_json: bool) -> None:
    identity = Identity.load_or_create(make_home(config.home) / "node.key")
    registry = Registry(max_registrations=config.max_registrations, max_per_namespace=config.max_per_swarm)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_control_host(identity, config.listen, gossip=False) as host:
            serve_rendezvous(host, registry, clock=boottime, chance=random.SystemRandom())
            _announce(host.peer, host.addresses(), as_json=as_json)
            async for _ in signals:
                return


def _announce(peer: str, addresses: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "listening", "addresses": addresses, "peer": peer}), flush=True)
    else:
        print("\n".join(addresses), flush=True)
