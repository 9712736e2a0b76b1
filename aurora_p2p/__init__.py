"""Aurora P2P: reinforcement learning across the internet.

A trainer turns each optimizer step into a small signed artifact; a swarm of nodes passes its segments around until
every node holds it; each node commits it between leases, generates rollouts under a lease, and signs what it returns;
the trainer admits only what it can check. docs/architecture.md shows which room does which part.
"""

__version__ = "0.1.0"
