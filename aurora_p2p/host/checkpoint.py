"""Version 0 from the configured folder, published by the same door as any trainer's."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from aurora_p2p.errors import CheckpointError


async def publish_checkpoint(folder: str, socket: Path) -> None:
    """Run the publisher on a checkpoint folder until it is done. Raises CheckpointError with its reason."""
    command = [sys.executable, "-m", "aurora_p2p.train.publish", folder, "--socket", str(socket)]
    result = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    if result.returncode:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
        raise CheckpointError(
            f"version 0 could not be published: {reason or lines[-1:]}",
            hint="`checkpoint` in run.toml must name a folder with config.json and the *.safetensors it describes",
        )
