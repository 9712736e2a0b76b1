"""Rollout engines behind one Protocol, each in its own process."""
