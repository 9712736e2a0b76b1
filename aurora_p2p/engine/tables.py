"""Which tensors a model configuration implies, and whether a header's are those. Imports no torch.

Coordinates are those of the checkpoint: safetensors names in sorted order, a tied lm_head left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from aurora_p2p.delta.tensors import layout_id
from aurora_p2p.errors import CheckpointError, StoreError
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import Header, ModelConfig

TIED = ("lm_head.weight", "model.embed_tokens.weight")
"""(alias, storage) of tied word embeddings."""
CHUNK_BYTES = 1 << 20

_FLOATS = ("BF16", "F16", "F32")
"""What a checkpoint of the supported architectures may be stored in."""


def specs_of(config: ModelConfig, dtype: str = "BF16") -> list[TensorSpec]:
    """The tensor table that a configuration implies, in canonical order."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    biased: tuple[str, ...] = ("q", "k", "v", "o") if config.attention_bias else ()
    if config.architecture == "qwen2":
        biased = ("q", "k", "v")
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for projection in biased:
        layer[f"self_attn.{projection}_proj.bias"] = layer[f"self_attn.{projection}_proj.weight"][:1]
    if config.architecture == "qwen3":
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (config.head_dim,)
    for index in range(config.layers):
        shapes.update((f"model.layers.{index}.{name}", shape) for name, shape in layer.items())
    return [TensorSpec(name, dtype, shapes[name]) for name in sorted(shapes)]


def check_table(config: ModelConfig, specs: Sequence[TensorSpec]) -> None:
    """Raises CheckpointError naming the first tensor in which the table is not that of the configuration."""
    expected = {spec.name: spec for spec in specs_of(config)}
    found = {spec.name: spec for spec in specs}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            problem = f"{name} is missing"
        elif name not in expected:
            problem = f"{name} has no place in a {config.architecture} model"
        elif found[name].shape != expected[name].shape:
            problem = f"{name} has shape {list(found[name].shape)}, not {list(expected[name].shape)}"
        elif found[name].dtype not in _FLOATS:
            problem = f"{name} is stored as {found[name].dtype}, which is none of {', '.join(_FLOATS)}"
        else:
            continue
        raise CheckpointError(f"the tensors do not match the model configuration: {problem}")


def check_numbers(config: ModelConfig) -> None:
    """Raises CheckpointError when the numbers do not make a model."""
    problems = {
        f"{config.heads} heads do not divide by {config.kv_heads} key/value heads": config.heads % config.kv_heads != 0,
        f"head_dim {config.head_dim} is odd": config.head_dim % 2 != 0,
        f"the pad token {config.pad_token} is not in the vocabulary": config.pad_token >= config.vocab_size,
        "qwen2 always has attention biases": config.architecture == "qwen2" and not config.attention_bias,
    }
    for problem, present in problems.items():
        if present:
            raise CheckpointError(f"the model configuration makes no model: {problem}")


def require_memory(needed_bytes: int, purpose: str) -> None:
    """Raises CheckpointError when the machine has less memory available than that."""
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise CheckpointError(
            f"{purpose} needs {needed_bytes / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are available",
            hint="close other programs, or join a run with a smaller model",
        )


def table_of(header: Header) -> tuple[ModelConfig, list[TensorSpec]]:
    """Configuration and stored tensors of a snapshot's header. Raises CheckpointError when they do not fit together."""
    config = header.model
    if header.kind != "snapshot" or config is None:
        raise CheckpointError("only a snapshot that carries its model configuration can be loaded")
    specs = [entry.spec for entry in header.tensors if entry.op == "full"]
    aliases = {entry.spec.name: entry.alias_of for entry in header.tensors if entry.op == "alias"}
    if len(specs) + len(aliases) != len(header.tensors):
        raise CheckpointError("a snapshot's tensors are full or aliases")
    if aliases and (not config.tie_word_embeddings or aliases != dict([TIED])):
        raise CheckpointError(f"{sorted(aliases)[0]} cannot be an alias in this model")
    check_table(config, specs)
    if layout_id(specs, aliases) != header.layout:
        raise CheckpointError("the tensor table is not the one that the header's layout names")
    return config, specs


def read_chunks(body: Path) -> Iterator[bytes]:
    """A body file in pieces. Raises StoreError when it cannot be read."""
    try:
        with body.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise StoreError(f"cannot read {body}: {error.strerror}") from error
