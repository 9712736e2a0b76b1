from __future__ import annotations

import json
import shutil

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from aurora_p2p.engine.model import (
    bits_tensor,
    build_model,
    checkpoint_bits,
    checkpoint_tensors,
    config_from_hf,
    dtype_of,
    hf_settings,
    load_bits,
    read_checkpoint,
    tensor_bits,
    write_checkpoint,
)
from aurora_p2p.engine.tables import check_table, require_memory, specs_of
from aurora_p2p.errors import CheckpointError, ShapeError
from aurora_p2p.types import DTYPES, TensorSpec

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""config.json of Qwen/Qwen3-8B, as published."""


def variants(config):
    return [
        config,
        msgspec.structs.replace(config, tie_word_embeddings=False, attention_bias=True),
        msgspec.structs.replace(config, architecture="qwen2", attention_bias=True),
    ]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_bits_of_every_dtype_are_the_tensors_own_memory(dtype):
    pattern = np.random.default_rng(1).integers(0, 256, 24 * DTYPES[dtype], dtype=np.uint8)
    pattern = pattern % 2 if dtype == "BOOL" else pattern
    bits = pattern.view(f"u{DTYPES[dtype]}")
    tensor = bits_tensor(bits, TensorSpec("t", dtype, (2, 3, 4)))
    assert tensor.dtype == dtype_of(TensorSpec("t", dtype, ()))
    again = tensor_bits(tensor)
    assert again.dtype == bits.dtype
    assert np.array_equal(again, bits)
    assert np.shares_memory(again, bits)


def test_zero_dimensional_and_empty_tensors_have_bits():
    assert tensor_bits(torch.tensor(1.0)).tolist() == [0x3F800000]
    assert bits_tensor(np.empty(0, np.uint16), TensorSpec("t", "BF16", (0, 7))).shape == (0, 7)
    with pytest.raises(ShapeError):
        bits_tensor(np.empty(3, np.uint16), TensorSpec("t", "BF16", (2, 2)))


def test_a_published_configuration_is_read_as_it_is():
    config = config_from_hf(QWEN3_8B)
    assert (config.layers, config.head_dim, config.rope_theta, config.eos_tokens) == (36, 128, 1e6, (151645,))
    assert sum(spec.elements for spec in specs_of(config)) == 8_190_735_360


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "llama"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 5}, "5 key/value heads"),
        ({"vocab_size": 1 << 30}, "out of bounds"),
        ({"num_hidden_layers": "many"}, "out of bounds"),
        ({"rms_norm_eps": float("nan")}, "out of bounds"),
    ],
)
def test_a_configuration_outside_the_allow_list_is_refused_by_name(change, named):
    with pytest.raises(CheckpointError, match=named):
        config_from_hf({**QWEN3_8B, **change})


def test_a_configuration_with_a_number_missing_is_refused():
    with pytest.raises(CheckpointError, match="vocab_size"):
        config_from_hf({key: value for key, value in QWEN3_8B.items() if key != "vocab_size"})


def test_a_table_that_is_not_the_configurations_is_refused_by_tensor(run):
    specs = run.specs
    strange = TensorSpec("model.visual.weight", "BF16", (2, 2))
    integer = msgspec.structs.replace(specs[0], dtype="I16")
    for table, named in (
        (specs[1:], "embed_tokens.weight is missing"),
        ([*specs, strange], "model.visual.weight has no place"),
        ([integer, *specs[1:]], "embed_tokens.weight is stored as I16"),
    ):
        with pytest.raises(CheckpointError, match=named):
            check_table(run.config, table)


def test_more_memory_than_there_is_is_refused_in_one_sentence():
    with pytest.raises(CheckpointError, match=r"the test needs 1048576.0 GiB of memory"):
        require_memory(1 << 50, "the test")


def test_a_checkpoint_folder_gives_back_what_was_written(run, tmp_path):
    for number, config in enumerate(variants(run.config)):
        specs = specs_of(config)
        rng = np.random.default_rng(number)
        bits = {spec.name: rng.integers(0, 1 << 16, spec.elements).astype(np.uint16) for spec in specs}
        write_checkpoint(tmp_path / str(number), config, specs, bits)
        found, table, again = read_checkpoint(tmp_path / str(number))
        assert (found, table) == (config, specs)
        assert all(np.array_equal(again[name], bits[name]) for name in bits)


def test_a_sharded_checkpoint_with_a_stored_tied_head_is_one_checkpoint(run, tmp_path):
    tensors = {spec.name: bits_tensor(run.bits[spec.name], spec) for spec in run.specs}
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    save_file({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / "head.safetensors")
    weight_map = {name: file for file, members in shards.items() for name in members}
    index = {"weight_map": {**weight_map, "lm_head.weight": "head.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(hf_settings(run.config)))
    _, specs, bits = read_checkpoint(tmp_path)
    assert specs == run.specs
    assert all(np.array_equal(bits[name], run.bits[name]) for name in bits)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("damage", ["no config", "no weights", "cut", "not json", "another table"])
def test_a_damaged_checkpoint_folder_is_refused(run, tmp_path, damage):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, run.config, run.specs, run.bits)
    weights, config = folder / "model.safetensors", folder / "config.json"
    match damage:
        case "no config":
            config.unlink()
        case "no weights":
            weights.unlink()
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "not json":
            config.write_text("{")
        case "another table":
            config.write_text(json.dumps({**hf_settings(run.config), "num_hidden_layers": 1}))
    with pytest.raises(CheckpointError):
        read_checkpoint(folder)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [0, 1, 2])
def test_a_built_model_has_the_table_of_its_configuration(run, variant):
    config = variants(run.config)[variant]
    model = build_model(config)
    specs, bits = checkpoint_bits(model)
    assert checkpoint_tensors(model)[0] == specs
    assert all(np.array_equal(tensor_bits(one), bits[name]) for name, one in checkpoint_tensors(model)[1].items())
    assert specs == specs_of(config)
    assert config_from_hf(model.config) == config
    load_bits(model, specs, bits)
    twin = build_model(config, initialize=False)
    load_bits(twin, specs, bits)
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        assert torch.equal(model(tokens).logits, twin(tokens).logits)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr() or not (
        config.tie_word_embeddings
    )
    _, again = checkpoint_bits(twin)
    assert all(np.array_equal(again[name], bits[name]) for name in bits)


@pytest.mark.slow
def test_loading_a_table_of_another_model_is_refused(run):
    model = build_model(run.config)
    specs = specs_of(msgspec.structs.replace(run.config, tie_word_embeddings=False))
    with pytest.raises(CheckpointError, match=r"lm_head.weight is in one of them only"):
        load_bits(model, specs, {})
