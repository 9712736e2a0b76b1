"""The node daemon: joins a swarm, follows its weights, works on leases."""
