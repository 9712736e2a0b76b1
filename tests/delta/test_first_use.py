"""Kernels are compiled once per machine: by setup, or by the first command that needs them, which says so."""

import os
import subprocess
import sys

import numpy as np
import pytest

from aurora_p2p.host.cli_delta import COMPILING
from tests.delta.test_cli_delta import write_raw


def delta(cache, *words):
    """What `aurora-host delta ...`, which must end well, says on stderr."""
    command = [sys.executable, "-m", "aurora_p2p.host.cli", "delta", *map(str, words)]
    done = subprocess.run(
        command, env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def compiled(cache):
    return {path.relative_to(cache) for path in cache.rglob("*.nbc")}


def checkpoint(path, moved):
    """A 16-bit tensor of several blocks, of which a hundredth moves, and one of every other width."""
    rng = np.random.default_rng(0)
    tensors = {}
    for dtype, kind in (("BF16", "u2"), ("F32", "u4"), ("F64", "u8"), ("I8", "u1")):
        size = 600_000 if kind == "u2" else 20_000
        bits = rng.integers(0x3000, 0x3F00, size).astype(kind)
        tensors[dtype] = (dtype, (size,), (bits + (rng.random(size) < moved).astype(kind)).tobytes())
    write_raw(path, tensors)


@pytest.mark.slow  # compiles every kernel: 15 s of a core
@pytest.mark.timeout(600)
def test_the_first_command_says_that_it_compiles_and_no_later_one_compiles_anything(tmp_path):
    cache, old, new, file = (tmp_path / name for name in ("cache", "old.safetensors", "new.safetensors", "d"))
    checkpoint(old, 0.0)
    checkpoint(new, 0.01)
    assert COMPILING in delta(cache, "encode", old, new, "-o", file)
    kernels = compiled(cache)
    assert len(kernels) >= 40
    for words in (
        ("encode", old, "-o", tmp_path / "snapshot"),
        ("verify", file, old),
        ("apply", old, file, "-o", tmp_path / "again.safetensors"),
        ("squash", tmp_path / "snapshot", file, "-o", tmp_path / "whole"),
        ("info", file),
    ):
        assert COMPILING not in delta(cache, *words)
    assert compiled(cache) == kernels
