"""The trainer-side swarm host: composition root, commands, demo."""
