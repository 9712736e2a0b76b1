"""The page on delta files: what it shows runs, on checkpoints of a stranger."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.docs.walk import Session, shell_lines

PAGE = Path(__file__).parents[2] / "docs" / "delta-files.md"


def checkpoint(folder: Path, step: int) -> None:
    """Two shards with an index, as a trainer saves them; a few elements move at each step."""
    rng, files = np.random.default_rng(1), {}
    folder.mkdir()
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        weights = rng.standard_normal((64, 64)).astype(np.float16)
        weights[:step] *= np.float16(1.001)
        save_file({f"layer.{number}.weight": weights}, folder / file, {"format": "pt"})
        files[f"layer.{number}.weight"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "config.json").write_text("{}")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom_and_writes_what_it_says(tmp_path: Path) -> None:
    for step in (10, 11, 12):
        checkpoint(tmp_path / f"step-{step}", step)
    with Session(tmp_path) as session:
        for line in shell_lines(PAGE):
            session.type(line)
    eleven, twelve = contents(tmp_path / "step-11"), contents(tmp_path / "step-12")
    assert contents(tmp_path / "step-11-again") == eleven
    assert contents(tmp_path / "step-12-again") == twelve
    assert contents(tmp_path / "step-11-whole") == {name: eleven[name] for name in eleven if name != "config.json"}
    assert contents(tmp_path / "step-10") == twelve
