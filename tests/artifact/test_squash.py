"""One artifact out of a chain of stored ones: the very bytes that an encoder makes of the dense states."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from aurora_p2p.artifact.bodies import Body
from aurora_p2p.artifact.squash import Chain, Snapshot, Squash
from aurora_p2p.delta import apply
from aurora_p2p.delta.classes.map import ClassMap, learn
from aurora_p2p.delta.coding import encode_block, encode_whole
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.encode import encode_delta, encode_snapshot
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, bits_dtype, layout_id
from aurora_p2p.errors import CheckpointError, DigestMismatch, StoreError, WireError
from aurora_p2p.types import DTYPES, StateDigest, TensorSpec, Version
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import TensorEntry
from tests.artifact.conftest import Publisher

MIXED = (
    TensorSpec("a", "BF16", (BLOCK_ELEMENTS + 700,)),
    *(TensorSpec(f"b.{dtype}", dtype, (9, 31)) for dtype in sorted(DTYPES)),
    TensorSpec("c.empty", "BF16", (0, 4)),
    TensorSpec("c.scalar", "F32", ()),
    TensorSpec("d", "F16", (1500,)),
)


@dataclass
class Stored:
    """A chain on disk, and the dense states along it."""

    specs: tuple[TensorSpec, ...]
    sources: list[Source]
    states: list[dict]

    def digest(self, version: int) -> StateDigest:
        return full_digest(self.specs, self.states[version])


def stored(folder: Path, specs=MIXED, *, steps: int, seed: int = 0, share: float = 0.05, cut: int = 0) -> Stored:
    """Publish a snapshot and `steps` deltas; cut: elements of their blocks where it is not the encoder's own."""
    rng, sources = np.random.default_rng(seed), []
    state = {spec.name: _random(rng, spec) for spec in specs}
    chain = Stored(specs, sources, [state])
    for version in range(steps + 1):
        base = chain.states[-1]
        if version:
            chain.states.append({name: _moved(rng, bits, share) for name, bits in base.items()})
        classes = learn([(base[s.name], chain.states[-1][s.name]) for s in specs if DTYPES[s.dtype] == 2])
        body = folder / f"body-{version}"
        body.write_bytes(
            _stream(specs, base if version else None, chain.states[-1], classes, cut and cut + 37 * version)
        )
        sources.append(_source(specs, version, body, chain, classes))
    return chain


def _random(rng, spec):
    bits = rng.integers(0, 2**62, spec.elements).astype(bits_dtype(spec.dtype))
    if spec.dtype == "BF16" and spec.elements:
        bits = (rng.normal(0, 0.02, spec.elements).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits


def _moved(rng, bits, share):
    moved = rng.random(bits.size) < share
    return np.where(moved, bits + rng.integers(1, 4, bits.size).astype(bits.dtype), bits).astype(bits.dtype)


def _stream(specs, base, new, classes, cut):
    if not cut:
        encoder = encode_snapshot(specs, new) if base is None else encode_delta(specs, base, new, bytes(32), classes)
        return b"".join(encoder)
    pieces = []
    for tensor, spec in enumerate(specs):
        for at in range(0, spec.elements, cut):
            part = slice(at, at + cut)
            if base is None:
                pieces.append(encode_whole(tensor, at, new[spec.name][part]))
            else:
                pieces.append(encode_block(tensor, at, base[spec.name][part], new[spec.name][part], classes)[0])
    return b"".join(reversed(pieces))


def _source(specs, version, body, chain, classes):
    kind = "delta" if version else "snapshot"
    header = structs.replace(
        Publisher().header(version, kind=kind, digest=chain.sources[-1].digest if version else b""),
        layout=layout_id(specs),
        class_map=classes.thresholds if version else b"",
        tensors=() if version else tuple(TensorEntry(spec, "full") for spec in specs),
    )
    return Source(header, str(body), full_digest(specs, chain.states[-1]))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    steps=st.integers(1, 5),
    base=st.integers(0, 4),
    share=st.sampled_from([0.0, 0.003, 0.05, 0.7, 1.0]),
    cut=st.sampled_from([0, 0, 777, BLOCK_ELEMENTS - 500]),
    threads=st.sampled_from([1, 2]),
)
def test_a_squash_is_the_very_delta_between_the_dense_states(tmp_path, seed, steps, base, share, cut, threads):
    chain = stored(tmp_path, steps=steps, seed=seed, share=share, cut=cut)
    base = min(base, steps - 1)
    with Chain(chain.sources) as opened:
        squash = Squash(opened, base + 1, threads=threads)
        stream = b"".join(squash)
        dense = encode_delta(MIXED, chain.states[base], chain.states[-1], chain.digest(base), squash.classes)
        assert stream == b"".join(dense)
        assert squash.digest == dense.digest == chain.digest(steps)
        assert (squash.changed, squash.elements) == (dense.changed, dense.elements)
        assert len(stream) <= squash.size_bound


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), steps=st.integers(0, 4), cut=st.sampled_from([0, 777, 60_000]))
def test_a_snapshot_of_a_chain_is_the_very_snapshot_of_its_last_state(tmp_path, seed, steps, cut):
    chain = stored(tmp_path, steps=steps, seed=seed, cut=cut)
    with Chain(chain.sources) as opened:
        snapshot = Snapshot(opened, threads=2)
        stream = b"".join(snapshot)
        assert stream == b"".join(encode_snapshot(MIXED, chain.states[-1]))
        assert snapshot.digest == chain.digest(steps)
        assert len(stream) <= snapshot.size_bound


def test_a_squash_applies_to_its_base_and_leads_where_the_chain_leads(tmp_path):
    chain = stored(tmp_path, steps=4)
    with Chain(chain.sources) as opened:
        squash = Squash(opened, 2)
        stream = b"".join(squash)
    bits = {name: one.copy() for name, one in chain.states[1].items()}
    staged = apply.stage(MIXED, [stream], bits, chain.digest(1), chain.digest(4), squash.classes)
    apply.write(staged, bits, MIXED)
    assert all(np.array_equal(bits[name], chain.states[4][name]) for name in bits)


def test_a_squash_of_a_squash_is_a_squash(tmp_path):
    chain = stored(tmp_path, steps=4)
    with Chain(chain.sources) as opened:
        first = Squash(opened, 1)
        whole = b"".join(Squash(opened, 1, classes=first.classes))
        middle = Snapshot(opened)
        (tmp_path / "whole").write_bytes(b"".join(middle))
    short = tmp_path / "short"
    with Chain(chain.sources[:3]) as opened:
        squash = Squash(opened, 1)
        short.write_bytes(b"".join(squash))
    header = structs.replace(
        chain.sources[2].header,
        base_version=Version(0),
        base_digest=chain.digest(0),
        class_map=squash.classes.thresholds,
    )
    joined = [chain.sources[0], Source(header, str(short), chain.digest(2)), *chain.sources[3:]]
    with Chain(joined) as opened:
        assert b"".join(Squash(opened, 1, classes=first.classes)) == whole
    assert read_snapshot(MIXED, [(tmp_path / "whole").read_bytes()], chain.digest(4)).keys() == chain.states[4].keys()


def test_a_chain_that_does_not_hold_together_is_refused_before_anything_is_read(tmp_path):
    chain = stored(tmp_path, steps=3)
    one, two, three = chain.sources[:3]
    for broken, reason in (
        ([two, three], "begins with a snapshot"),
        ([one, three], "does not follow"),
        ([one, one], "does not follow"),
        ([one, structs.replace(two, header=structs.replace(two.header, layout=bytes(32)))], "another tensor table"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            Chain(broken)
    with Chain(chain.sources) as opened:
        for base in (0, 4):
            with pytest.raises(CheckpointError, match="cannot start after"):
                Squash(opened, base)


@pytest.mark.parametrize("which", [0, 1, 3])
def test_a_body_that_rotted_is_never_squashed_into_a_wrong_delta(tmp_path, which):
    chain = stored(tmp_path, steps=3)
    path = Path(chain.sources[which].body)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 4
    path.write_bytes(body)
    with pytest.raises((WireError, DigestMismatch)), Chain(chain.sources) as opened:
        list(Squash(opened, 2))


def test_a_digest_that_was_signed_for_another_state_is_noticed(tmp_path):
    chain = stored(tmp_path, steps=3)
    lying = [*chain.sources[:3], structs.replace(chain.sources[3], digest=StateDigest(bytes(32)))]
    for work in (lambda opened: Squash(opened, 1), Snapshot):
        with Chain(lying) as opened, pytest.raises(DigestMismatch, match="version 3 is not the state"):
            list(work(opened))


def test_a_missing_or_torn_body_is_named(tmp_path):
    chain = stored(tmp_path, steps=2)
    path = Path(chain.sources[1].body)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(WireError, match="ends inside a block"):
        Chain(chain.sources)
    path.unlink()
    with pytest.raises(StoreError, match="cannot read"):
        Chain(chain.sources)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_indexed_or_refused(tmp_path, data):
    specs = (TensorSpec("a", "BF16", (300,)), TensorSpec("b", "I8", (5,)))
    state = {spec.name: np.zeros(spec.elements, bits_dtype(spec.dtype)) for spec in specs}
    body = bytearray(b"".join(encode_snapshot(specs, state)))
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "body"
    path.write_bytes(data.draw(st.binary(max_size=80) | st.just(bytes(body))))
    try:
        opened = Body(path, specs, whole=data.draw(st.booleans()))
    except WireError:
        return
    try:
        for tensor, spec in enumerate(specs):
            for block in opened.blocks(tensor, 0, spec.elements):
                assert block.offset + block.length <= spec.elements
    except WireError:
        pass
    finally:
        opened.close()


def test_memory_is_a_few_blocks_whatever_the_size_of_the_checkpoint(tmp_path):
    specs = (TensorSpec("a", "BF16", (24 * BLOCK_ELEMENTS,)),)
    chain = stored(tmp_path, specs, steps=3, share=0.01)
    chain.states.clear()
    with Chain(chain.sources) as opened:
        for work in (Squash(opened, 2, classes=ClassMap(b"\x70")), Snapshot(opened)):
            for _ in work:
                break  # what is allocated once
            tracemalloc.start()
            for _ in work:
                pass
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 14 * 2**20  # of 24 MiB; a block of bf16 is 1 MiB
