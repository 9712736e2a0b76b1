"""A trainer that is killed goes on where it saved, bit for bit; a damaged or foreign file is refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from aurora_p2p.engine.model import build_model
from aurora_p2p.errors import CheckpointError
from aurora_p2p.local import faults
from aurora_p2p.local.faults import Armed, DiskRule, Plan
from aurora_p2p.train import save
from aurora_p2p.train.loop import GrpoTrainer, TrainOptions
from aurora_p2p.train.save import resume_trainer, save_patiently, save_trainer
from aurora_p2p.types import Version
from aurora_p2p.wire.manifest import ModelConfig

TINY = ModelConfig("qwen3", 264, 32, 64, 1, 4, 2, 8, 128, 10_000.0, 1e-6, True, False, (258,), 256)


def trainer(seed: int = 0, config: ModelConfig = TINY) -> GrpoTrainer:
    torch.manual_seed(seed)
    return GrpoTrainer(build_model(config), config, TrainOptions(lr=1e-2, eps=1e-3))


def step(one: GrpoTrainer, seed: int) -> None:
    """One optimizer step on made-up gradients."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in one.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    one._update()


def same(first: GrpoTrainer, second: GrpoTrainer) -> bool:
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_steps_after_a_resume_are_those_that_the_killed_trainer_would_have_taken(tmp_path: Path) -> None:
    first, second = trainer(), trainer(seed=1)
    for seed in range(3):
        step(first, seed)
    save_trainer(tmp_path / "state", first, Version(3))
    assert resume_trainer(tmp_path / "state", second) == 3
    for seed in (3, 4):
        step(first, seed)
        step(second, seed)
    assert same(first, second)


def test_a_state_saved_before_the_first_step_has_no_moments_and_is_resumed(tmp_path: Path) -> None:
    first, second = trainer(), trainer(seed=1)
    save_trainer(tmp_path / "state", first, Version(0))
    assert resume_trainer(tmp_path / "state", second) == 0
    assert same(first, second)


def test_nothing_saved_is_nothing_resumed(tmp_path: Path) -> None:
    assert resume_trainer(tmp_path / "state", trainer()) is None


def test_a_save_that_is_cut_off_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trainer()
    save_trainer(tmp_path / "state", first, Version(1))
    whole = (tmp_path / "state").read_bytes()
    step(first, 0)
    monkeypatch.setattr(faults, "_armed", Armed(Plan((DiskRule("write", "*", hit=1),)), "trainer"))
    naps: list[float] = []
    monkeypatch.setattr(save.time, "sleep", naps.append)
    seen: list[bytes] = []
    monkeypatch.setattr(save._log, "warning", lambda *_: seen.append((tmp_path / "state").read_bytes()))
    save_patiently(tmp_path / "state", first, Version(2))
    assert seen == [whole]
    assert naps == [save.FIRST_PAUSE_SECONDS]
    assert resume_trainer(tmp_path / "state", trainer()) == 2


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"{}" + b])
def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path: Path, damage) -> None:
    save_trainer(tmp_path / "state", trainer(), Version(3))
    (tmp_path / "state").write_bytes(damage((tmp_path / "state").read_bytes()))
    other = trainer(seed=1)
    with pytest.raises(CheckpointError, match="no state"):
        resume_trainer(tmp_path / "state", other)
    assert same(other, trainer(seed=1))


def test_the_state_of_another_model_is_refused_with_the_tensors_name(tmp_path: Path) -> None:
    save_trainer(tmp_path / "state", trainer(), Version(3))
    wider = msgspec.structs.replace(TINY, intermediate_size=128)
    with pytest.raises(CheckpointError, match=r"mlp.*another shape"):
        resume_trainer(tmp_path / "state", trainer(config=wider))
