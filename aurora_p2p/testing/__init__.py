"""Shipped test kit: seeded network simulator, clocks, adversaries."""
