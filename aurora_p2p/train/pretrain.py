"""The demo's model: built and warmed up from a seed, kept in a cache.

A small Qwen3-architecture model learns from demonstrations, most of them sloppy, until it solves a fifth of the task:
far enough for rewards to appear, little enough for reinforcement learning to show. The same seed and recipe give the
same weights on the same kind of machine. The cache folder's name is a hash of both; a checkpoint appears there complete
or not at all.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from aurora_p2p.engine.model import build_model, checkpoint_bits, write_checkpoint
from aurora_p2p.errors import CheckpointError
from aurora_p2p.train.evaluate import Weights, sampled_accuracy
from aurora_p2p.train.tasks import EOS, PAD, SORT_DIGITS, VOCABULARY, Tokens
from aurora_p2p.wire.codec import encode, hash_of
from aurora_p2p.wire.manifest import ModelConfig

MODEL = ModelConfig(
    architecture="qwen3",
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    max_positions=128,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    attention_bias=False,
    eos_tokens=(EOS,),
    pad_token=PAD,
)
"""329,472 parameters."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights, besides the seed."""

    model: ModelConfig = MODEL
    init_std: float = 0.08
    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.98)
    ramp_steps: int = 15
    """Steps over which the learning rate rises to `lr`."""
    batch: int = 64
    sloppy: float = 0.65
    """Share of demonstrations with a junk character after the answer."""
    target: float = 0.20
    """Sampled accuracy at which to stop."""
    first_check: int = 20
    check_every: int = 5
    check_prompts: int = 256
    max_steps: int = 160


RECIPE = Recipe()


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    step: int
    loss: float
    accuracy: float | None
    """Sampled accuracy where it was measured."""


Progress = Callable[[WarmupProgress], None]


def pretrained(cache: Path, seed: int, recipe: Recipe = RECIPE, on_progress: Progress | None = None) -> Path:
    """Folder of the warmed-up checkpoint, made on the first call. Raises CheckpointError when the warm-up fails."""
    folder = cache / f"sort-digits-{hash_of(encode((recipe, seed))).hex()[:16]}"
    if folder.exists():
        return folder
    model = initialised(recipe, seed)
    warm_up(model, recipe, seed, on_progress)
    cache.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
    write_checkpoint(beside, recipe.model, *checkpoint_bits(model))
    try:
        beside.rename(folder)
    except OSError:
        # Another process was faster with the same content.
        shutil.rmtree(beside)
        if not folder.exists():
            raise
    return folder


def initialised(recipe: Recipe, seed: int) -> nn.Module:
    """A float32 model: matrices from N(0, init_std), norms 1, biases 0."""
    model = build_model(recipe.model, torch.float32, initialize=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(0.0, recipe.init_std, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith(".bias") else 1.0)
    return model


def warm_up(model: nn.Module, recipe: Recipe, seed: int, on_progress: Progress | None = None) -> int:
    """Train on demonstrations until the sampled accuracy reaches the target; returns the steps taken."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=0.0, fused=True)
    rng = random.Random(f"warm-up/{seed}")  # noqa: S311 - demonstrations are not secrets
    accuracy = None
    for step in range(1, recipe.max_steps + 1):
        optimizer.param_groups[0]["lr"] = recipe.lr * min(1.0, step / recipe.ramp_steps)
        loss = imitation_loss(model, *SORT_DIGITS.demonstrations(recipe.batch, recipe.sloppy, rng))
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        checked = step >= recipe.first_check and step % recipe.check_every == 0
        if checked:
            prompts = SORT_DIGITS.held_out(recipe.check_prompts)
            weights = Weights.of(recipe.model, model)
            accuracy = sampled_accuracy(weights, SORT_DIGITS, prompts, (seed,), _score).mean
        if on_progress:
            on_progress(WarmupProgress(step, loss.item(), accuracy if checked else None))
        if accuracy is not None and accuracy >= recipe.target:
            return step
    raise CheckpointError(
        f"the warm-up reached an accuracy of {accuracy or 0.0:.2f}, not {recipe.target}, in {recipe.max_steps} steps",
        hint="try another --seed",
    )


def _score(batch: Sequence[tuple[Tokens, Tokens]]) -> list[float | None]:
    """In this process: the completions are our own model's, not a stranger's."""
    return [SORT_DIGITS.score(prompt, tokens) for prompt, tokens in batch]


def imitation_loss(model: nn.Module, prompts: list[Tokens], completions: list[Tokens]) -> Tensor:
    """Mean cross-entropy of the completions' tokens; prompts have one length, completions are padded with PAD."""
    width = max(map(len, completions))
    targets = torch.tensor([tokens + (PAD,) * (width - len(tokens)) for tokens in completions])
    ids = torch.cat([torch.tensor(prompts), targets], 1)[:, :-1]
    logits = model(input_ids=ids, logits_to_keep=width, use_cache=False).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
