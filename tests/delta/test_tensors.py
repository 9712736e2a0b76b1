import numpy as np
import pytest

from aurora_p2p.delta.tensors import BLOCK_ELEMENTS, Coverage, bits_dtype, bits_of, blocks, layout_id, tensor_id
from aurora_p2p.errors import ShapeError, WireError
from aurora_p2p.types import DTYPES, TensorSpec

A, B = TensorSpec("a", "BF16", (2, 3)), TensorSpec("b", "F32", ())


def test_every_dtype_has_bits_of_its_own_size() -> None:
    assert {name: bits_dtype(name).itemsize for name in DTYPES} == DTYPES
    with pytest.raises(WireError, match="unknown tensor dtype"):
        bits_dtype("F4")


def test_blocks_cover_a_tensor_once_and_an_empty_one_not_at_all() -> None:
    assert list(blocks(0)) == []
    assert list(blocks(1)) == [(0, 1)]
    assert list(blocks(2 * BLOCK_ELEMENTS + 5)) == [
        (0, BLOCK_ELEMENTS),
        (BLOCK_ELEMENTS, BLOCK_ELEMENTS),
        (2 * BLOCK_ELEMENTS, 5),
    ]


def test_the_layout_names_everything_that_a_receiver_builds() -> None:
    layouts = [
        layout_id((A, B)),
        layout_id((A,)),
        layout_id((A, B), {"head": "a"}),
        layout_id((A, B), {"head": "b"}),
        layout_id((TensorSpec("a", "F16", (2, 3)), B)),
        layout_id((TensorSpec("a", "BF16", (3, 2)), B)),
        layout_id((TensorSpec("a", "BF16", (6,)), B)),
        layout_id(()),
    ]
    assert len(set(layouts)) == len(layouts)
    assert all(len(layout) == 32 for layout in layouts)
    assert layout_id((A, B), {"x": "a", "y": "b"}) == layout_id((A, B), {"y": "b", "x": "a"})


def test_layout_and_tensor_identities_never_change() -> None:
    assert layout_id((A, B), {"head": "a"}).hex() == "8d2d6e9f0296e4852bcdcada7b53c62a9f6886854e16710cb4077718212a2091"
    assert tensor_id(A) == 794257604428228417


@pytest.mark.parametrize(
    ("specs", "aliases"),
    [
        ((B, A), {}),
        ((A, A), {}),
        ((A, TensorSpec("b", "F4", ())), {}),
        ((A, B), {"a": "b"}),
        ((A, B), {"head": "c"}),
    ],
)
def test_a_table_that_is_not_canonical_is_refused(specs: tuple[TensorSpec, ...], aliases: dict[str, str]) -> None:
    with pytest.raises(WireError):
        layout_id(specs, aliases)


def test_bits_that_do_not_fit_their_spec_are_our_own_bug() -> None:
    right = np.zeros(6, np.uint16)
    assert bits_of(A, {"a": right}) is right
    for wrong in ({}, {"a": right[:5]}, {"a": right.reshape(2, 3)}, {"a": np.zeros(12, np.uint16)[::2]}):
        with pytest.raises(ShapeError):
            bits_of(A, wrong)
    with pytest.raises(ShapeError):
        bits_of(A, {"a": right.astype(np.uint32)})


def test_no_element_can_be_claimed_twice() -> None:
    coverage = Coverage()
    coverage.claim(0, 10, 10)
    coverage.claim(0, 0, 10)
    coverage.claim(0, 25, 5)
    coverage.claim(1, 10, 10)
    for offset, length in ((0, 1), (9, 2), (19, 1), (10, 10), (0, 30), (20, 6), (29, 1)):
        with pytest.raises(WireError, match="two blocks"):
            coverage.claim(0, offset, length)
    coverage.claim(0, 20, 5)
    assert coverage.elements(0) == 30
    assert coverage.elements(2) == 0
