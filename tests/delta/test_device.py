"""The torch path says what the CPU path says, bit for bit. Run on the CPU device, and on CUDA where there is one."""

import numpy as np
import pytest
import torch

from aurora_p2p.delta.block import BlockReader
from aurora_p2p.delta.classes.map import ONE_CLASS, learn
from aurora_p2p.delta.coding import decode_block, encode_block
from aurora_p2p.delta.device import decode_on, digest_lanes, integers, undo_on, write_on
from aurora_p2p.delta.device_encode import encode_tensor
from aurora_p2p.delta.digest import EMPTY, RunningDigest, full_digest
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Bits, blocks
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import DTYPES, TensorSpec
from tests.delta.test_classes import stepped, weights

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
pytestmark = pytest.mark.parametrize("device", DEVICES)


def on(bits: Bits, device: str) -> torch.Tensor:
    signed = bits if bits.itemsize == 1 else bits.view(np.dtype(f"i{bits.itemsize}"))
    return torch.from_numpy(signed.copy()).to(device)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("elements", [1, 4095, 4096, 9001])
def test_digests_are_equal(make_step, device: str, dtype: str, elements: int) -> None:
    step = make_step({"w": (dtype, (elements,))}, 0.5, elements)
    running = RunningDigest(EMPTY)
    running.add_lanes(digest_lanes(step.specs[0], on(step.new["w"], device)))
    assert running.value() == full_digest(step.specs, step.new)


def test_digests_of_more_than_one_pass_are_equal(device: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**16, (1 << 21) + 5000).astype(np.uint16)
    spec = TensorSpec("w", "BF16", bits.shape)
    running = RunningDigest(EMPTY)
    running.add_lanes(digest_lanes(spec, on(bits, device)))
    assert running.value() == full_digest((spec,), {"w": bits})


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["gaussian", "special", "any"])
def test_the_same_bytes_lead_to_the_same_changes(device: str, kind: str, density: float) -> None:
    rng = np.random.default_rng(7)
    base = weights(rng, BLOCK_ELEMENTS + 1000, kind)
    new = stepped(rng, base, density, 0.02)
    spec = TensorSpec("w", "BF16", base.shape)
    for classes in (ONE_CLASS, learn([(base, new)])):
        pieces = list(encode_tensor(3, on(base, device), on(new, device), classes))
        expected = [encode_block(3, o, base[o : o + n], new[o : o + n], classes) for o, n in blocks(base.size)]
        assert [piece for piece, _ in pieces] == [piece for piece, _ in expected]
        held, there = base.copy(), on(base, device)
        for coded, _ in expected:
            for block in BlockReader().feed(coded):
                before = there[block.offset : block.offset + block.length]
                ours, reference = decode_on(block, spec, before, classes), decode_block(block, spec, base, classes)
                assert sorted(zip(ours.positions, ours.old, ours.new, strict=True)) == sorted(
                    zip(reference.positions, reference.old, reference.new, strict=True)
                )
                held[ours.positions] = ours.new
        assert np.array_equal(held, new)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_is_encoded_applied_and_undone(make_step, device: str, dtype: str) -> None:
    step = make_step({"w": (dtype, (777,))}, 0.2, 5)
    spec, base, new = step.specs[0], step.base["w"], step.new["w"]
    there = on(base, device)
    ((coded, change),) = encode_tensor(0, there, on(new, device))
    assert coded == encode_block(0, 0, base, new)[0]
    (block,) = BlockReader().feed(coded)
    decoded = decode_on(block, spec, there)
    assert write_on(decoded, there)
    assert torch.equal(there, on(new, device))
    assert not write_on(decoded, there), "never twice"
    undo_on(change, there)
    assert torch.equal(there, on(base, device))


def test_a_payload_for_another_base_and_tensors_that_do_not_match_are_refused(device: str) -> None:
    rng = np.random.default_rng(1)
    base = weights(rng, 5000, "gaussian")
    new = stepped(rng, base, 0.3, 0.0)
    classes = learn([(base, new)])
    (block,) = BlockReader().feed(encode_block(0, 0, base, new, classes)[0])
    other = np.zeros(5000, np.uint16)
    with pytest.raises(WireError):
        decode_on(block, TensorSpec("w", "BF16", (5000,)), on(other, device), classes)
    with pytest.raises(ShapeError):
        decode_on(block, TensorSpec("w", "BF16", (5000,)), on(other[:10], device), classes)
    with pytest.raises(ShapeError):
        list(encode_tensor(0, on(base, device), on(base[:10], device)))
    with pytest.raises(ShapeError):
        integers(torch.zeros(4, 4).T[:, ::2])


def test_integers_share_the_tensor_s_memory(device: str) -> None:
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16, device=device)
    integers(tensor)[4] = 0x3F80
    assert tensor[1, 1].item() == 1.0
