"""SQLite: the host's ledger and a node's memory of its swarm."""
