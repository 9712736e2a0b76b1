"""Keys, peer ids and domain-separated signatures. No protocol values: those are in wire/."""
