"""Names under which a swarm is found: derived from the swarm id, so nobody has to agree on them."""

from __future__ import annotations

from aurora_p2p.types import SwarmId


def namespace_of(swarm: SwarmId) -> str:
    """Rendezvous namespace under which the hosts of a swarm register."""
    return f"aurora/1/{swarm}"


def head_topic(swarm: SwarmId) -> str:
    """Gossip topic of HEAD hints."""
    return f"aurora/1/{swarm}/head"
