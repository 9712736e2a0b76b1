import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from aurora_p2p.delta.apply import Staged, stage, undo, write
from aurora_p2p.delta.block import BlockReader, RawBlock, frame
from aurora_p2p.delta.classes.map import ONE_CLASS, ClassMap
from aurora_p2p.delta.coding import encode_block
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.errors import DigestMismatch, ShapeError, WireError
from aurora_p2p.types import StateDigest, TensorSpec

relaxed = settings(deadline=None, max_examples=60)
MIXED = {"a": ("BF16", (40, 50)), "b": ("F32", (301,)), "c": ("I8", (77,)), "d": ("F64", ()), "e": ("BF16", (0,))}


def copy(bits: dict[str, Bits]) -> dict[str, Bits]:
    return {name: array.copy() for name, array in bits.items()}


def same(one: dict[str, Bits], other: dict[str, Bits]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def staged_of(step, stream: bytes) -> Staged:
    start, end = full_digest(step.specs, step.base), full_digest(step.specs, step.new)
    return stage(step.specs, [stream], step.base, start, end)


def stream_of(step) -> bytes:
    return b"".join(encode_delta(step.specs, step.base, step.new, full_digest(step.specs, step.base)))


def test_the_encoder_reports_the_new_digest_and_what_it_found(every_dtype) -> None:
    step = every_dtype
    encoder = encode_delta(step.specs, step.base, step.new, full_digest(step.specs, step.base))
    pieces = list(encoder)
    assert all(len(BlockReader().feed(piece)) == 1 for piece in pieces)
    assert encoder.digest == full_digest(step.specs, step.new)
    assert encoder.changed == sum(int((step.base[name] != step.new[name]).sum()) for name in step.base)
    assert encoder.elements == sum(spec.elements for spec in step.specs)
    assert list(encoder) == []


def test_a_chain_of_steps_stays_exact_and_unwinds_exactly(make_step) -> None:
    shapes = {"a": ("BF16", (600_000,)), "b": ("F32", (1000,)), "c": ("U8", (3,))}
    step = make_step(shapes, 0.0, 0)
    rng = np.random.default_rng(9)
    weights, reached = copy(step.base), full_digest(step.specs, step.base)
    history: list[tuple[Staged, dict[str, Bits]]] = []
    for _ in range(8):
        new = copy(weights)
        for bits in new.values():
            where = np.flatnonzero(rng.random(bits.size) < 0.02)
            bits[where] += rng.integers(1, 4, where.size).astype(bits.dtype)
        encoder = encode_delta(step.specs, weights, new, reached)
        pieces = list(encoder)
        staged = stage(step.specs, pieces, weights, reached, encoder.digest)
        history.append((staged, copy(weights)))
        write(staged, weights, step.specs)
        assert same(weights, new)
        assert staged.changed == encoder.changed
        reached = staged.digest
    assert reached == full_digest(step.specs, weights)
    for staged, before in reversed(history):
        undo(staged, weights, step.specs)
        assert same(weights, before)


@relaxed
@given(density=st.sampled_from([0.0, 0.01, 0.3, 1.0]), seed=st.integers(0, 2**32), cut=st.integers(1, 500))
def test_staging_touches_nothing_and_writing_gives_the_new_bits(make_step, density: float, seed: int, cut: int) -> None:
    step = make_step(MIXED, density, seed)
    stream, base = stream_of(step), copy(step.base)
    chunks = [stream[at : at + cut] for at in range(0, len(stream), cut)]
    start, end = full_digest(step.specs, base), full_digest(step.specs, step.new)
    staged = stage(step.specs, chunks, base, start, end)
    assert same(base, step.base)
    write(staged, base, step.specs)
    assert same(base, step.new)
    undo(staged, base, step.specs)
    assert same(base, step.base)


@settings(deadline=None, max_examples=15)
@given(split=st.integers(1, 599_999), seed=st.integers(0, 2**32))
def test_shards_cut_anywhere_and_sent_in_any_order_give_the_same_state(make_step, split: int, seed: int) -> None:
    step = make_step({"w": ("BF16", (600_000,))}, 0.001, seed)
    base, new = step.base["w"], step.new["w"]
    edges = sorted({0, split, min(split + 2**19, 600_000), split // 2, 600_000})
    shards = [encode_block(0, a, base[a:b], new[a:b])[0] for a, b in pairwise(edges)]
    one, two = staged_of(step, stream_of(step)), staged_of(step, b"".join(reversed(shards)))
    assert one.digest == two.digest
    assert one.changed == two.changed
    write(two, {"w": (weights := base.copy())}, step.specs)
    assert np.array_equal(weights, new)


def test_two_blocks_over_one_element_are_refused_even_if_they_agree(make_step) -> None:
    step = make_step({"w": ("BF16", (100,))}, 0.5, 1)
    base, new = step.base["w"], step.new["w"]
    whole, tail = encode_block(0, 0, base, new)[0], encode_block(0, 90, base[90:], new[90:])[0]
    for stream in (whole + whole, whole + tail, tail + whole):
        with pytest.raises(WireError, match="two blocks"):
            staged_of(step, stream)


def test_a_delta_is_refused_on_another_base_and_twice_on_the_same(make_step) -> None:
    step = make_step(MIXED, 0.1, 2)
    staged = staged_of(step, stream_of(step))
    weights = copy(step.base)
    write(staged, weights, step.specs)
    with pytest.raises(DigestMismatch, match="not the staged delta's base"):
        write(staged, weights, step.specs)
    assert same(weights, step.new)
    last = staged.changes[-1]
    other = copy(step.base)
    other[step.specs[last.tensor].name][last.positions[-1]] ^= 1
    before = copy(other)
    with pytest.raises(DigestMismatch, match=repr(step.specs[last.tensor].name)):
        write(staged, other, step.specs)
    assert same(other, before)


def test_read_only_or_misshapen_weights_are_refused_before_anything_is_written(make_step) -> None:
    step = make_step(MIXED, 0.1, 2)
    staged = staged_of(step, stream_of(step))
    weights = copy(step.base)
    weights["b"].flags.writeable = False
    with pytest.raises(ShapeError, match="read-only"):
        write(staged, weights, step.specs)
    weights["b"] = weights["b"][:-1].copy()
    with pytest.raises(ShapeError):
        write(staged, weights, step.specs)
    assert np.array_equal(weights["a"], step.base["a"])


def test_a_result_other_than_the_signed_one_is_refused(make_step) -> None:
    step = make_step(MIXED, 0.1, 3)
    start = full_digest(step.specs, step.base)
    with pytest.raises(DigestMismatch):
        stage(step.specs, [stream_of(step)], step.base, start, start)
    with pytest.raises(DigestMismatch):
        stage(step.specs, [], step.base, start, full_digest(step.specs, step.new))
    wrong_base = copy(step.base)
    wrong_base["a"] += np.uint16(1)
    with pytest.raises(DigestMismatch):
        stage(step.specs, [stream_of(step)], wrong_base, start, full_digest(step.specs, step.new))


def test_a_cut_stream_and_an_unknown_tensor_are_refused(make_step) -> None:
    step = make_step(MIXED, 0.1, 4)
    stream = stream_of(step)
    with pytest.raises(WireError, match="ends inside a block"):
        staged_of(step, stream[:-1])
    with pytest.raises(WireError, match="names tensor 5 of 5"):
        staged_of(step, stream + frame(RawBlock(5, 0, 1, 0, b"x")))


@settings(deadline=None, max_examples=150)
@given(
    junk=st.binary(max_size=200), flips=st.lists(st.integers(0, 10**7), min_size=1, max_size=3), recompute=st.booleans()
)
def test_damaged_streams_raise_and_change_nothing(make_step, junk: bytes, flips: list[int], recompute: bool) -> None:
    step = make_step(MIXED, 0.1, 5)
    blocks = BlockReader().feed(stream_of(step))
    number = flips[0] % len(blocks)
    target = bytearray(blocks[number].payload if recompute else frame(blocks[number]))
    for flip in set(flips):
        target[flip // 8 % len(target)] ^= 1 << flip % 8
    old = blocks[number]
    lying = frame(RawBlock(old.tensor, old.offset, old.length, old.mode, bytes(target))) if recompute else bytes(target)
    pieces = [lying if index == number else frame(block) for index, block in enumerate(blocks)]
    base = copy(step.base)
    for stream in (b"".join(pieces), b"".join(pieces) + junk, junk):
        try:
            staged = staged_of(step, stream)
        except (WireError, DigestMismatch):
            continue
        finally:
            assert same(step.base, base)
        # Padding bits carry nothing, and flips may cancel: what is accepted is the signed state.
        write(staged, weights := copy(base), step.specs)
        assert same(weights, step.new)


def signatures() -> dict[str, int]:
    """How many signatures of each kernel are compiled."""
    modules = [module for name, module in sys.modules.items() if name.startswith("aurora_p2p.delta")]
    kernels = {
        f"{value.__module__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and value.targetoptions.get("nogil")
    }
    return {name: len(kernel.signatures) for name, kernel in kernels.items()}


def test_nothing_is_left_to_compile_after_warm_whatever_the_dtype_and_the_memory(every_dtype) -> None:
    before = signatures()  # every_dtype called warm
    frozen = {name: np.frombuffer(bits.tobytes(), bits.dtype) for name, bits in every_dtype.base.items()}
    digest = full_digest(every_dtype.specs, frozen)
    for classes in (ONE_CLASS, ClassMap(bytes(range(60, 200, 20)))):
        stream = b"".join(encode_delta(every_dtype.specs, frozen, every_dtype.new, digest, classes))
        stage(every_dtype.specs, [stream], frozen, digest, full_digest(every_dtype.specs, every_dtype.new), classes)
    assert len(before) >= 20
    assert signatures() == before


def test_an_empty_checkpoint_has_an_empty_delta() -> None:
    spec = TensorSpec("w", "BF16", (0,))
    empty: dict[str, Bits] = {"w": np.empty(0, np.uint16)}
    zero = StateDigest(bytes(32))
    assert list(encode_delta((spec,), empty, empty, zero)) == []
    assert stage((spec,), [], empty, zero, zero).changes == ()
