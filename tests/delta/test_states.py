"""States, transitions and layers in memory: any table to any other, any cut into blocks, hashes of whole tensors."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.artifact.layers import Layer, Place, Stream, overlapping
from aurora_p2p.artifact.parallel import in_order
from aurora_p2p.artifact.states import Arrays, State, Table, compare, misfit, table_after
from aurora_p2p.artifact.transition import Transition
from aurora_p2p.delta.block import HASH, BlockReader, RawBlock, frame
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.coding import encode_block
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_snapshot
from aurora_p2p.delta.hashes import hash_block
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import bits_dtype
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import DTYPES, TensorSpec
from aurora_p2p.wire.manifest import TensorEntry

relaxed = settings(deadline=None, max_examples=60)


def stream_of(transition: Transition) -> Stream:
    """A transition's stream as something to be laid over its base, in memory."""
    places: dict[int, list[Place]] = {}
    blocks: dict[int, RawBlock] = {}
    for piece, _ in transition:
        for block in BlockReader().feed(piece):
            if block.mode != HASH:
                at = len(blocks)
                blocks[at] = block
                places.setdefault(block.tensor, []).append(Place(block.offset, block.length, block.mode, at, 0))
    table = table_after(transition.entries)
    return Stream(transition.entries, table, places, transition.classes, lambda place: blocks[place.at])


def all_bits(state: State):
    return {name: state.read(name, 0, state.table.spec_of(name).elements) for name in state.table.names}


def same(one: State, other: State) -> bool:
    left, right = all_bits(one), all_bits(other)
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


shapes = st.sampled_from([(), (0,), (3, 0), (1,), (5, 7), (600, 1000)])
tables = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=5)


def state_of(rows, tied: bool, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    specs = tuple(TensorSpec(name, *rows[name]) for name in sorted(rows))
    arrays = {
        spec.name: rng.integers(0, 4, spec.elements, np.uint8).astype(bits_dtype(spec.dtype)).reshape(spec.shape)
        for spec in specs
    }
    aliases = {"tied": specs[0].name} if tied and specs else {}
    return Arrays(Table(specs, aliases), arrays)


@relaxed
@given(before=tables, after=tables, tied=st.tuples(st.booleans(), st.booleans()), threads=st.integers(1, 3))
def test_a_layer_over_any_state_is_any_other_state(make_step, before, after, tied, threads):
    base, new = state_of(before, tied[0], 1), state_of(after, tied[1], 2)
    for start in (base, None):
        transition = Transition(start, new, threads)
        assert same(Layer(start, stream_of(transition)), new)
        specs = new.table.specs
        assert transition.facts.digest == full_digest(specs, {spec.name: all_bits(new)[spec.name] for spec in specs})
        assert transition.facts.hashes == {s.name: blake3(all_bits(new)[s.name].tobytes()).digest() for s in specs}
    assert misfit(base.table, Transition(base, new).entries) == ""


@relaxed
@given(
    cuts=st.sets(st.integers(1, 599), max_size=8),
    dropped=st.integers(0, 8),
    span=st.tuples(st.integers(0, 600), st.integers(0, 600)),
    seed=st.integers(0, 2**32),
)
def test_blocks_cut_anywhere_give_every_span_of_the_new_tensor(make_step, cuts, dropped, span, seed):
    step = make_step({"w": ("BF16", (600,))}, 0.3, seed)
    base, new, places, framed = step.base["w"], step.new["w"].copy(), [], {}
    edges = [0, *sorted(cuts), 600]
    for number, (start, end) in enumerate(pairwise(edges)):
        encoded, _ = encode_block(0, start, base[start:end], new[start:end], ClassMap(b"\x40\x80"))
        if number == dropped or not encoded:
            new[start:end] = base[start:end]
            continue
        [framed[start]] = BlockReader().feed(encoded)
        places.append(Place(start, end - start, framed[start].mode, start, 0))
    table = Table(step.specs)
    stream = Stream(compare(table, table), table, {0: places}, ClassMap(b"\x40\x80"), lambda place: framed[place.at])
    layer, (start, end) = Layer(Arrays(table, {"w": base}), stream), sorted(span)
    assert np.array_equal(layer.read("w", start, end - start), new[start:end])


def test_a_state_takes_arrays_of_any_layout_and_refuses_other_shapes():
    spec = TensorSpec("w", "BF16", (3, 4))
    whole = np.arange(24, dtype=np.uint16).reshape(4, 6)
    state = Arrays(Table((spec,)), {"w": whole[:, ::2].T})
    assert state.read("w", 0, 12).tolist() == whole[:, ::2].T.reshape(-1).tolist()
    for wrong in (whole, whole[:3, :4].astype(np.uint32), whole[:, ::2]):
        with pytest.raises(ShapeError, match="'w'"):
            Arrays(Table((spec,)), {"w": wrong})
    with pytest.raises(ShapeError):
        state.read("w", 11, 2)


@pytest.mark.parametrize(
    "entries",
    [
        [TensorEntry(TensorSpec("b", "U8", ()), "full"), TensorEntry(TensorSpec("a", "U8", ()), "full")],
        [TensorEntry(TensorSpec("a", "U8", ()), "full"), TensorEntry(TensorSpec("a", "U8", ()), "deleted")],
        [TensorEntry(TensorSpec("a", "U8", ()), "alias", "b"), TensorEntry(TensorSpec("b", "U8", ()), "deleted")],
        [TensorEntry(TensorSpec("a", "U8", ()), "alias", "b"), TensorEntry(TensorSpec("b", "I8", ()), "full")],
        [TensorEntry(TensorSpec("a", "U8", ()), "alias", "a")],
    ],
)
def test_entries_that_make_no_table_are_refused(entries: Sequence[TensorEntry]):
    with pytest.raises(WireError):
        table_after(entries)


def test_overlapping_places_are_those_with_an_element_in_the_span():
    places = [Place(start, 5, 0, start, 0) for start in (0, 5, 20)]
    found = {
        span: [place.offset for place in overlapping(places, *span)] for span in [(0, 1), (4, 6), (10, 20), (24, 99)]
    }
    assert found == {(0, 1): [0], (4, 6): [0, 5], (10, 20): [], (24, 99): [20]}


@pytest.mark.parametrize("threads", [1, 4])
def test_results_come_in_order_and_an_error_at_its_turn(threads):
    assert list(in_order(lambda n: n * n, range(50), threads)) == [(n, n * n) for n in range(50)]
    taken = []
    with pytest.raises(ZeroDivisionError):
        for item, _ in in_order(lambda n: 1 // (7 - n), range(50), threads):
            taken.append(item)
    assert taken == list(range(7))


def test_a_snapshot_carries_the_hash_of_each_tensor_and_a_wrong_one_is_refused(make_step):
    step = make_step({"a": ("BF16", (70,)), "e": ("F32", (0,)), "s": ("I64", ())}, 0.0, 1)
    encoder = encode_snapshot(step.specs, step.base)
    blocks = [block for piece in encoder for block in BlockReader().feed(piece)]
    hashes = {step.specs[block.tensor].name: block.payload for block in blocks if block.mode == HASH}
    assert hashes == {name: blake3(bits.tobytes()).digest() for name, bits in step.base.items()}
    body = [frame(block) for block in blocks if block.mode != HASH]
    assert read_snapshot(step.specs, body, encoder.digest).keys() == step.base.keys()
    right = hash_block(0, hashes["a"])
    wrong = [
        [hash_block(0, hashes["s"])],
        [right, right],
        [frame(dataclasses.replace(blocks[-1], offset=1))],
        [frame(dataclasses.replace(blocks[-1], length=2))],
        [frame(dataclasses.replace(blocks[-1], payload=bytes(31)))],
        [hash_block(3, bytes(32))],
    ]
    for hash_blocks in wrong:
        with pytest.raises(WireError):
            read_snapshot(step.specs, body + hash_blocks, encoder.digest)
