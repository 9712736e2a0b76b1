"""One module for each published figure: `python -m benchmarks.NAME --json`."""
