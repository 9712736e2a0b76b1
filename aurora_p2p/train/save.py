"""A trainer's state on disk, so that a job that was killed goes on: float32 masters, AdamW's moments, the version.

One safetensors file, replaced atomically and durably: a reader finds the old state or the new one, never half.

    model.<name>  exp_avg.<name>  exp_avg_sq.<name>  step.<name>      metadata: {"version": "12"}

The weights of version v are saved before v is published. A job killed in between publishes them again, as a snapshot,
for it cannot know what nodes hold; so nothing is lost when every version is saved. With `save_every` k, a job that
resumes behind its host has lost the optimizer steps since its save: its older weights become the swarm's next version.
The prompts of a step follow from the run's seed and the step, and are the same after a resume.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from aurora_p2p.errors import CheckpointError, DiskFullError
from aurora_p2p.local.files import write_durably
from aurora_p2p.train.patience import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS
from aurora_p2p.types import Version

if TYPE_CHECKING:
    from torch import Tensor

    from aurora_p2p.train.loop import GrpoTrainer

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's state of one parameter."""
_log = logging.getLogger("aurora_p2p.train")


def save_trainer(path: Path, trainer: GrpoTrainer, version: Version) -> None:
    """Write what `trainer` needs to go on from the weights of `version`. Raises StoreError, DiskFullError."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainer.model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        moments = trainer.optimizer.state.get(parameter, {})
        tensors |= {f"{moment}.{name}": moments[moment] for moment in MOMENTS if moment in moments}
    write_durably(path, save(tensors, {"version": str(version)}))


def save_patiently(path: Path, trainer: GrpoTrainer, version: Version) -> None:
    """The same; a full disk is waited for, because going on without the save would lose what it is for."""
    said, pause = False, FIRST_PAUSE_SECONDS
    while True:
        try:
            return save_trainer(path, trainer, version)
        except DiskFullError as error:
            if not said:
                _log.warning("saving version %d has to wait: %s", version, error)
            said = True
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)


def resume_trainer(path: Path, trainer: GrpoTrainer) -> Version | None:
    """Give `trainer` the state saved at `path`; returns its version, None when nothing was saved yet.

    Raises CheckpointError, and changes nothing, when the file is damaged or is of another model.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            version = Version(int((file.metadata() or {})["version"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        found = {name: tensors[f"model.{name}"] for name, _ in trainer.model.named_parameters()}
        wrong = [name for name, parameter in trainer.model.named_parameters() if found[name].shape != parameter.shape]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path} holds no state of this trainer: {error}", hint="move it away") from error
    if wrong:
        raise CheckpointError(f"{path} is of another model: {wrong[0]} has another shape", hint="move it away")
    for name, parameter in trainer.model.named_parameters():
        parameter.data.copy_(found[name])
        moments = {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS if f"{moment}.{name}" in tensors}
        if moments:
            trainer.optimizer.state[parameter] = moments
    return version
