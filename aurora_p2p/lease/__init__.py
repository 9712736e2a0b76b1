"""Sans-IO machines of work: samples, leases, shares, admission."""
