"""The bootstrap service: where peers of a swarm find each other."""
