"""Checkpoints and the models built from them: an allow-list of architectures, plain safetensors, bits kept exact.

A model is built from a ModelConfig alone: no path, no tokenizer, no code from a repository. The tensor table that a
configuration implies is known without building anything (tables.py), so a header is checked before memory is spent.

Coordinates are those of the checkpoint: safetensors names in sorted order, a tied lm_head left out.
Transformers is imported only when a model is built.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.tables import TIED, check_numbers, check_table
from aurora_p2p.errors import CheckpointError, ShapeError, StoreError, WireError
from aurora_p2p.local.files import write_durably
from aurora_p2p.types import DTYPES, TensorSpec
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.manifest import ModelConfig

_TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer of each item size that torch and numpy exchange without a copy."""


def tensor_bits(tensor: torch.Tensor) -> Bits:
    """The tensor's bits, sharing its memory where it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array = flat.view(_SIGNED[flat.element_size()]).numpy()
    return array.view(f"u{array.itemsize}")


def bits_tensor(bits: Bits, spec: TensorSpec) -> torch.Tensor:
    """The inverse of tensor_bits, sharing memory. Raises ShapeError when the bits are not the spec's."""
    if bits.size != spec.elements or bits.itemsize != DTYPES[spec.dtype]:
        raise ShapeError(f"{bits.size} x {bits.itemsize} bytes are not {spec.name}: {spec.dtype} {list(spec.shape)}")
    return typed(bits, spec.dtype).reshape(spec.shape)


def typed(bits: Bits, dtype: str) -> torch.Tensor:
    """Any run of elements as a flat tensor of the safetensors dtype, sharing memory."""
    integers = np.dtype("u1" if bits.itemsize == 1 else f"i{bits.itemsize}")
    return torch.from_numpy(bits.view(integers)).view(_TORCH[dtype])


def dtype_of(spec: TensorSpec) -> torch.dtype:
    return _TORCH[spec.dtype]


def import_models() -> None:
    """Import what build_model and a generation need: several seconds, better spent before the first weights come."""
    import transformers.cache_utils
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401


def build_model(config: ModelConfig, dtype: torch.dtype = torch.float32, *, initialize: bool = True) -> nn.Module:
    """A transformers causal LM of the configuration, on the CPU, in evaluation mode; tied where it says so.

    initialize: False leaves the weights unset, for a caller that loads them. Raises CheckpointError when the numbers do
    not make a model.
    """
    from transformers.initialization import no_init_weights

    check_numbers(config)
    if config.architecture == "qwen3":
        from transformers.models.qwen3.configuration_qwen3 import Qwen3Config as Config
        from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM as Model
    else:
        from transformers.models.qwen2.configuration_qwen2 import Qwen2Config as Config
        from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM as Model
    settings = Config(**hf_settings(config), attn_implementation="sdpa")
    if initialize:
        model = Model(settings)
    else:
        with no_init_weights():
            model = Model(settings)
        model.tie_weights()
    built: nn.Module = model.to(dtype).eval()
    return built


def hf_settings(config: ModelConfig) -> dict[str, Any]:
    """The configuration in the words of a transformers config.json."""
    class_name = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}[config.architecture]
    settings: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "use_sliding_window": False,
        "eos_token_id": list(config.eos_tokens),
        "pad_token_id": config.pad_token,
    }
    if config.architecture == "qwen3":
        settings["attention_bias"] = config.attention_bias
    return settings


def config_from_hf(source: Any) -> ModelConfig:
    """ModelConfig of a config.json's content or a PretrainedConfig.

    Raises CheckpointError for anything outside the allow-list: other architectures, scaled rotary embeddings, sliding
    windows, other activations, quantization, or a number out of bounds.
    """
    found: Mapping[str, Any] = source if isinstance(source, Mapping) else source.to_dict()
    architecture = found.get("model_type")
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    unsupported = {
        f"the architecture {architecture!r} (qwen3 and qwen2 are)": architecture not in ("qwen3", "qwen2"),
        "a rope_type other than default": rope.get("rope_type", rope.get("type", "default")) != "default",
        "sliding window attention": bool(found.get("use_sliding_window")),
        "quantized weights": found.get("quantization_config") is not None,
        f"the activation {found.get('hidden_act')!r}": found.get("hidden_act", "silu") != "silu",
    }
    for what, present in unsupported.items():
        if present:
            raise CheckpointError(f"this model cannot be used: {what} is not supported")
    eos = found.get("eos_token_id")
    stops = tuple(eos) if isinstance(eos, list | tuple) else () if eos is None else (eos,)
    pad = found.get("pad_token_id")
    try:
        heads = found["num_attention_heads"]
        config = ModelConfig(
            architecture=found["model_type"],
            vocab_size=found["vocab_size"],
            hidden_size=found["hidden_size"],
            intermediate_size=found["intermediate_size"],
            layers=found["num_hidden_layers"],
            heads=heads,
            kv_heads=found.get("num_key_value_heads") or heads,
            head_dim=found.get("head_dim") or found["hidden_size"] // heads,
            max_positions=found["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta") or found.get("rope_theta") or 10_000.0),
            rms_norm_eps=found.get("rms_norm_eps", 1e-6),
            tie_word_embeddings=found.get("tie_word_embeddings", False),
            attention_bias=architecture == "qwen2" or found.get("attention_bias", False),
            eos_tokens=stops,
            pad_token=pad if pad is not None else (stops or (0,))[0],
        )
        config = decode(encode(config), ModelConfig)
    except (KeyError, TypeError, ValueError, ArithmeticError, WireError) as error:
        raise CheckpointError(f"the model configuration is incomplete or out of bounds: {error}") from error
    check_numbers(config)
    return config


def parameters_of(model: nn.Module, specs: Iterable[TensorSpec]) -> dict[str, nn.Parameter]:
    """Parameters by checkpoint name. Raises CheckpointError when model and table differ in a name or shape."""
    parameters = dict(model.named_parameters())
    table = {spec.name: spec.shape for spec in specs}
    for name in parameters.keys() ^ table.keys():
        raise CheckpointError(f"the tensors do not match the model: {name} is in one of them only")
    for name, shape in table.items():
        if tuple(parameters[name].shape) != shape:
            raise CheckpointError(f"the tensors do not match the model: {name} is {list(parameters[name].shape)} there")
    return parameters


def checkpoint_bits(model: nn.Module) -> tuple[list[TensorSpec], dict[str, Bits]]:
    """The model rounded to bf16, in canonical order. The arrays are the caller's own."""
    parameters = dict(sorted(model.named_parameters()))
    specs = [TensorSpec(name, "BF16", tuple(parameter.shape)) for name, parameter in parameters.items()]
    bits = {
        name: tensor_bits(parameter.detach().to(torch.bfloat16, copy=True)) for name, parameter in parameters.items()
    }
    return specs, bits


class Rounded(Mapping[str, torch.Tensor]):
    """Tensors as they are now, each rounded to bf16 where it is when it is asked for: one tensor's memory at a time."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach().to(torch.bfloat16)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def checkpoint_tensors(model: nn.Module) -> tuple[list[TensorSpec], Mapping[str, torch.Tensor]]:
    """`checkpoint_bits` without leaving the model's device, and without a copy of it: for train.publish."""
    parameters = dict(sorted(model.named_parameters()))
    specs = [TensorSpec(name, "BF16", tuple(parameter.shape)) for name, parameter in parameters.items()]
    return specs, Rounded(parameters)


def load_bits(model: nn.Module, specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> None:
    """Write a checkpoint into the model's parameters, cast to their dtype. Raises CheckpointError on a mismatch."""
    parameters = parameters_of(model, specs)
    with torch.no_grad():
        for spec in specs:
            parameters[spec.name].copy_(bits_tensor(bits[spec.name], spec))


def read_checkpoint(folder: Path) -> tuple[ModelConfig, list[TensorSpec], dict[str, Bits]]:
    """A local safetensors checkpoint (one file, or shards with an index): configuration, table, bits.

    Raises CheckpointError when files are missing or damaged, or tensors do not match the configuration.
    """
    try:
        config = config_from_hf(json.loads((folder / "config.json").read_text()))
        tensors: dict[str, torch.Tensor] = {}
        for path in _shards(folder):
            with safe_open(path, framework="pt") as file:
                tensors.update((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {error}") from error
    if config.tie_word_embeddings:
        tensors.pop(TIED[0], None)
    unknown = next((name for name, tensor in tensors.items() if tensor.dtype not in _NAMES), None)
    if unknown:
        raise CheckpointError(f"{unknown} is stored as {tensors[unknown].dtype}, which is not supported")
    specs = [TensorSpec(name, _NAMES[tensors[name].dtype], tuple(tensors[name].shape)) for name in sorted(tensors)]
    check_table(config, specs)
    return config, specs, {spec.name: tensor_bits(tensors[spec.name]).copy() for spec in specs}


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    if any(Path(name).name != name for name in names):
        raise ValueError(f"{index} names files outside its folder")
    return [folder / name for name in names]


def write_checkpoint(folder: Path, config: ModelConfig, specs: Sequence[TensorSpec], bits: Mapping[str, Bits]) -> None:
    """Write config.json and model.safetensors; each file whole or not at all. Raises StoreError."""
    tensors = {spec.name: bits_tensor(bits[spec.name], spec) for spec in specs}
    beside = folder / "model.safetensors.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, beside, metadata={"format": "pt"})
        beside.replace(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot write the checkpoint {folder}: {error}") from error
    settings = {**hf_settings(config), "dtype": "bfloat16"}
    write_durably(folder / "config.json", (json.dumps(settings, indent=2) + "\n").encode(), mode=0o644)
