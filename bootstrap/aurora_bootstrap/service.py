"""A running bootstrap: one libp2p host that answers rendezvous requests from memory, until SIGTERM or SIGINT.

It keeps nothing but its key: peers register again within minutes after a restart. It signs nothing and is trusted
with nothing; at worst it hides peers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from aurora_bootstrap.config import BootstrapConfig
from aurora_bootstrap.metrics import BOOTSTRAP_METRICS, snapshot
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local import hangup
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.config import make_home
from aurora_p2p.local.control import serve_control, socket_path
from aurora_p2p.local.log import EventLog, log_path
from aurora_p2p.local.metrics import serve_metrics
from aurora_p2p.local.output import Output
from aurora_p2p.local.process import LoopLag
from aurora_p2p.net.host import ControlHost, open_control_host
from aurora_p2p.net.rendezvous import Registry, serve_rendezvous


def serve(home: Path, config: BootstrapConfig, *, as_json: bool) -> None:
    """Run until a signal ends it. home: keeps the key, 0700. Raises StoreError, UsageError, PortInUseError."""
    make_home(home)
    with EventLog.open(log_path(home, "bootstrap")) as log:
        trio.run(_serve, home, config, as_json, log)


async def _serve(home: Path, config: BootstrapConfig, as_json: bool, log: EventLog) -> None:
    identity = Identity.load_or_create(home / "node.key")
    registry = Registry(max_registrations=config.max_registrations, max_per_namespace=config.max_per_swarm)
    with trio.open_signal_receiver(*hangup.stop_signals()) as signals:
        async with open_control_host(identity, config.listen, gossip=False) as host, trio.open_nursery() as nursery:
            serve_rendezvous(host, registry, clock=boottime, chance=random.SystemRandom())
            log.write("listening", addresses=host.addresses(), peer=host.peer)
            _announce(host.peer, host.addresses(), as_json=as_json)
            await _start_watching(nursery, home, config, Output(as_json=as_json, log=log), host, registry)
            async for number in signals:
                hangup.heard(number)
                nursery.cancel_scope.cancel()
                return


async def _start_watching(
    nursery: trio.Nursery, home: Path, config: BootstrapConfig, output: Output, host: ControlHost, registry: Registry
) -> None:
    """The status over the control socket, and the metrics."""
    lag = LoopLag()

    async def status(_request: object = None) -> dict[str, Any]:
        return snapshot(host, registry, lag)

    nursery.start_soon(lag.run)
    await nursery.start(serve_control, socket_path(home, "control"), {"status": status})
    await nursery.start(serve_metrics, config.metrics_listen, BOOTSTRAP_METRICS, status, output)


def _announce(peer: str, addresses: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "listening", "addresses": addresses, "peer": peer}), flush=True)
    else:
        print("\n".join(addresses), flush=True)
