"""Which exponents share a class, and how a map is learned.

Adam moves every weight by about the learning rate, and a bf16 weight changes its bits only when that crosses a rounding
boundary, whose spacing doubles with every octave of |w|: the probability of a change doubles for every octave that |w|
falls. The receiver holds the base, hence the exponent: gaps are coded within classes of elements that change about
equally often.

    class byte   bits 14..7 of an element's base: bf16's exponent; fp16's exponent and three mantissa bits
    class        how many of the map's thresholds the class byte reaches
    on the wire  the thresholds, 0 to 7 bytes, strictly ascending, none of them 0 (header field class_map)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from aurora_p2p.delta.tensors import Bits
from aurora_p2p.errors import WireError

MAX_CLASSES = 8
SAMPLE_ELEMENTS = 1 << 20
"""Elements looked at to learn a map: at 0.1 % changed still a thousand changes; milliseconds of work."""
_LANES = MAX_CLASSES - 1
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassMap:
    """The thresholds of up to eight classes."""

    thresholds: bytes = b""

    def __post_init__(self) -> None:
        """Raises WireError for thresholds that are not 0 to 7 strictly ascending non-zero bytes."""
        steps = list(self.thresholds)
        if len(steps) > _LANES or 0 in steps or sorted(set(steps)) != steps:
            raise WireError("a class map is not at most 7 strictly ascending thresholds above 0")

    @property
    def classes(self) -> int:
        return len(self.thresholds) + 1

    @cached_property
    def floors(self) -> npt.NDArray[np.int8]:
        """int8[7] for words.at_least."""
        floors = np.full(_LANES, 127, np.int8)
        floors[: len(self.thresholds)] = [(step - 1) - 128 for step in self.thresholds]
        return floors

    @cached_property
    def floors_address(self) -> int:
        """Of `floors`, which live as long as the map."""
        return self.floors.ctypes.data

    @cached_property
    def class_of(self) -> npt.NDArray[np.uint8]:
        """uint8[256]: the class of each class byte."""
        return np.searchsorted(list(self.thresholds), np.arange(256), side="right").astype(np.uint8)


ONE_CLASS = ClassMap()


def learn(pairs: Iterable[tuple[Bits, Bits]], classes: int = MAX_CLASSES) -> ClassMap:
    """The map of at most `classes` classes that suits a sample of (base, new) pairs of uint16[n]."""
    elements, changed = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for base, new in pairs:
        byte = (base >> np.uint16(7)) & np.uint16(0xFF)
        elements += np.bincount(byte, minlength=256)
        changed += np.bincount(byte[base != new], minlength=256)
    return best_map(elements, changed, classes)


def sampled(pairs: list[tuple[Bits, Bits]]) -> Iterable[tuple[Bits, Bits]]:
    """About SAMPLE_ELEMENTS elements of the pairs, evenly spread."""
    stride = max(1, sum(base.size for base, _ in pairs) // SAMPLE_ELEMENTS)
    for base, new in pairs:
        yield base[::stride], new[::stride]


def best_map(elements: Counts, changed: Counts, classes: int = MAX_CLASSES) -> ClassMap:
    """The thresholds that minimize the entropy of where changes are, given the class.

    elements, changed: int64[256] by class byte. Dynamic programming over contiguous classes, exact.
    """
    if not changed.any():
        return ONE_CLASS
    cost = _interval_bits(elements, changed)
    best, choices = cost[0], []
    for _ in range(classes - 1):
        through = best[:, None] + cost
        choice = through.argmin(axis=0)
        best = through[choice, np.arange(257)]
        choices.append(choice)
    cuts, end = set(), 256
    for choice in reversed(choices):
        end = int(choice[end])
        cuts.add(end)
    return ClassMap(bytes(sorted(cut for cut in cuts if 0 < cut < 256)))


def _interval_bits(elements: Counts, changed: Counts) -> npt.NDArray[np.float64]:
    """float64[257, 257]: entropy in bits of one class of the class bytes i .. j - 1; inf where i > j."""
    total = np.concatenate(([0], np.cumsum(elements))).astype(np.float64)
    moved = np.concatenate(([0], np.cumsum(changed))).astype(np.float64)
    size, hits = total[None, :] - total[:, None], moved[None, :] - moved[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(size > 0, hits / size, 0.0)
        bits = -(share * np.log2(share, where=share > 0, out=np.zeros_like(share)))
        bits -= (1 - share) * np.log2(1 - share, where=share < 1, out=np.zeros_like(share))
    cost = size * bits
    cost[np.tril_indices(257, -1)] = np.inf
    return cost
