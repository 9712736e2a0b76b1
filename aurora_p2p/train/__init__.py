"""GRPO on torch, rewards, and the client by which a trainer publishes and takes rollouts."""
