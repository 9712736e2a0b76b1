"""Tensors are published where they are: the same artifacts as from arrays, and little that leaves the device.

On the CPU device, and on CUDA where there is one.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from aurora_p2p.delta import device, device_encode
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine import resident
from aurora_p2p.engine.model import Rounded, bits_tensor
from aurora_p2p.errors import CheckpointError, RefusedError, ShapeError
from aurora_p2p.train import device_base
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.publish import Publisher
from aurora_p2p.types import TensorSpec, Version
from tests.train.test_publish import CONFIG, SPECS, random_bits, stepped

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BASES = ["device", "host"]
SMALL = 1 << 14
"""Blocks up to this size are weighed whole (delta.coding.SMALL_BYTES)."""


@pytest.fixture
def swarm(open_swarm):
    return open_swarm(lambda weights, version, request: [])


@pytest.fixture(params=DEVICES)
def on(request):
    """A checkpoint's bits as tensors on a device, the test's own."""

    def tensors(bits: dict[str, Bits]) -> dict[str, torch.Tensor]:
        return {spec.name: bits_tensor(bits[spec.name].copy(), spec).to(request.param) for spec in SPECS}

    return tensors


def publisher_of(client: SwarmClient, base_on: str = "device") -> Publisher:
    return Publisher(client, CONFIG, device_path="always", base_on=base_on)  # type: ignore[arg-type]


def chain() -> list[dict[str, Bits]]:
    """A snapshot's weights, then ones of which a few, half, and all changed."""
    found = [random_bits(1)]
    for share in (0.01, 0.5, 1.0, 0.0):
        found.append(stepped(found[-1], share))
    return found


@pytest.mark.parametrize("base_on", BASES)
def test_artifacts_of_tensors_are_those_of_arrays_byte_for_byte(open_swarm, on, base_on) -> None:
    made = []
    for take in (dict, on):
        swarm = open_swarm(lambda weights, version, request: [])
        with SwarmClient.open(swarm.path) as client:
            publisher = Publisher(client, CONFIG) if take is dict else publisher_of(client, base_on)
            published = [publisher.publish(SPECS, take(bits), Version(version)) for version, bits in enumerate(chain())]
        made.append(
            [(one.kind, one.manifest_hash, one.digest, one.bytes, one.changed, one.elements) for one in published]
        )
        made.append(swarm.begun)
    assert made[0] == made[2]  # manifest_hash is here the hash of the body
    assert made[1] == made[3]
    assert [kind for kind, *_ in made[0]] == ["snapshot", *["delta"] * 4]


def test_of_a_delta_thirteen_bytes_per_change_leave_the_device_and_the_rest_is_counted_too(swarm, on) -> None:
    first = random_bits(2)
    second = stepped(first, 0.01)
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client)
        whole = publisher.publish(SPECS, on(first), Version(0))
        delta = publisher.publish(SPECS, on(second), Version(1))
    changed = [spec for spec in SPECS if not np.array_equal(first[spec.name], second[spec.name])]
    small = sum(spec.nbytes for spec in changed if spec.nbytes <= SMALL)
    finite, sample = len(SPECS), 2 * 256 * 8 * len(SPECS)
    assert delta.bytes_off_device == 13 * delta.changed + small + finite + sample
    assert whole.bytes_off_device == sum(spec.nbytes for spec in SPECS) + finite


def test_of_a_large_tensor_hardly_more_leaves_than_what_changed(swarm) -> None:
    spec = TensorSpec("model.embed_tokens.weight", "BF16", (3000, 1024))
    bits = {spec.name: np.random.default_rng(0).integers(0x3F80, 0x3FFF, spec.elements, np.uint16)}
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client)
        publisher.publish([spec], bits, Version(0))
        delta = publisher.publish([spec], stepped(bits, 0.001), Version(1))
    assert delta.changed > 2500
    assert delta.bytes_off_device == 13 * delta.changed + 2 * 256 * 8 + 1
    assert delta.bytes_off_device < spec.nbytes / 100


FORBIDDEN = {"cpu", "numpy", "tolist", "item", "equal", "allclose"}


@pytest.mark.parametrize("module", [device, device_encode, device_base, resident])
def test_nothing_but_the_counted_crossing_takes_tensors_to_the_host(module) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    counted = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Crossing"]
    inside = {id(node) for one in counted for node in ast.walk(one)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in inside]
    named = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
    assert not FORBIDDEN & set(named)
    if module is device:
        assert len(counted) == 1


@pytest.mark.parametrize("base_on", BASES)
def test_an_optimizer_may_go_on_writing_to_tensors_that_were_published(swarm, on, base_on) -> None:
    weights = on(random_bits(3))
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client, base_on)
        publisher.publish(SPECS, weights, Version(0))
        for version in (1, 2):
            weights["model.norm.weight"][version] = 1.5
            delta = publisher.publish(SPECS, weights, Version(version))
            assert (delta.kind, delta.changed) == ("delta", 1)
    assert swarm.weights[1]["model.norm.weight"][2] == 0x3FC0


@pytest.mark.parametrize("base_on", BASES)
@pytest.mark.parametrize("fault", ["lose_next_answer", "cut_next_body"])
def test_a_publication_that_is_cut_off_leaves_the_right_base(swarm, on, base_on, fault) -> None:
    first, second, third = chain()[:3]
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client, base_on)
        publisher.publish(SPECS, on(first), Version(0))
        setattr(swarm, fault, True)
        assert publisher.publish(SPECS, on(second), Version(1)).kind == "delta"
        assert publisher.publish(SPECS, on(third), Version(2)).kind == "delta"
    assert swarm.digest == full_digest(SPECS, third)


@pytest.mark.parametrize("base_on", BASES)
def test_a_refusal_leaves_the_base_of_tensors_as_it_was(swarm, on, base_on) -> None:
    first, second, third = chain()[:3]
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client, base_on)
        publisher.publish(SPECS, on(first), Version(0))
        swarm.refuse = "no disk"
        with pytest.raises(RefusedError, match="no disk"):
            publisher.publish(SPECS, on(third), Version(1))
        swarm.refuse = ""
        assert publisher.publish(SPECS, on(second), Version(1)).kind == "delta"
    assert swarm.digest == full_digest(SPECS, second)


@pytest.mark.parametrize("base_on", BASES)
def test_arrays_that_were_adopted_are_the_base_of_tensors_and_stay_the_caller_s(swarm, on, base_on) -> None:
    first, second, third = chain()[:3]
    with SwarmClient.open(swarm.path) as client:
        Publisher(client, CONFIG).publish(SPECS, first, Version(0))
        publisher = publisher_of(client, base_on)
        assert not publisher.adopt(SPECS, on(second))
        assert publisher.adopt(SPECS, first)
        assert publisher.publish(SPECS, on(second), Version(1)).kind == "delta"
        assert publisher.publish(SPECS, on(third), Version(2)).kind == "delta"
    assert all(np.array_equal(bits, random_bits(1)[name]) for name, bits in first.items())
    assert swarm.digest == full_digest(SPECS, third)


def test_tensors_in_host_memory_are_copied_and_compared_as_arrays(swarm) -> None:
    first, second = chain()[:2]
    weights = {spec.name: bits_tensor(first[spec.name].copy(), spec) for spec in SPECS}
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, weights, Version(0))
        for spec in SPECS:
            weights[spec.name].copy_(bits_tensor(second[spec.name], spec))
        delta = publisher.publish(SPECS, weights, Version(1))
    assert (delta.kind, delta.bytes_off_device, swarm.digest) == ("delta", 0, full_digest(SPECS, second))


def test_float32_masters_are_rounded_one_tensor_at_a_time(swarm, on) -> None:
    first, second = chain()[:2]
    masters = {name: tensor.float() for name, tensor in on(first).items()}
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client)
        publisher.publish(SPECS, Rounded(masters), Version(0))
        for name, tensor in on(second).items():
            masters[name].copy_(tensor)
        assert publisher.publish(SPECS, Rounded(masters), Version(1)).kind == "delta"
        assert swarm.digest == full_digest(SPECS, second)
        with pytest.raises(ShapeError, match="float32"):
            publisher.publish(SPECS, masters, Version(2))
    assert [begin.version for begin in swarm.begun] == [0, 1]


def test_tensors_that_are_not_finite_never_leave(swarm, on) -> None:
    weights = on(random_bits(4))
    weights["model.norm.weight"][5] = torch.nan
    with SwarmClient.open(swarm.path) as client, pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        publisher_of(client).publish(SPECS, weights, Version(0))
    assert swarm.begun == []


@pytest.mark.parametrize("base_on", BASES)
def test_tensors_that_are_not_contiguous_are_published_in_row_major_order(swarm, on, base_on) -> None:
    first, second = chain()[:2]
    with SwarmClient.open(swarm.path) as client:
        publisher = publisher_of(client, base_on)
        for version, bits in enumerate((first, second)):
            weights = on(bits)
            name = "model.layers.0.mlp.down_proj.weight"
            weights[name] = weights[name].T.contiguous().T
            assert not weights[name].is_contiguous()
            publisher.publish(SPECS, weights, Version(version))
    assert swarm.digest == full_digest(SPECS, second)
