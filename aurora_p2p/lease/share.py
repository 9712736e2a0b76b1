"""Who gets how many samples: measured throughput, split by largest remainder.

tau <- 0.8 tau + 0.2 (tokens/s of the lease that just ended)
"""

from __future__ import annotations

from collections.abc import Mapping

from aurora_p2p.types import PeerId

MEMORY = 0.8
"""Weight of the past in the moving average (AuroraRL's)."""
MIN_SECONDS = 1e-3
"""A lease is never timed shorter than this: a result that came at once is no proof of infinite speed."""


def updated_rate(rate: float | None, tokens: float, seconds: float) -> float:
    """The moving average after one more lease, tokens/s. rate: None before the first one."""
    observed = tokens / max(seconds, MIN_SECONDS)
    return observed if rate is None else MEMORY * rate + (1 - MEMORY) * observed


def mean_rate(rates: Mapping[PeerId, float | None]) -> float | None:
    """Mean of the measured rates, tokens/s; None when there is none."""
    measured = [rate for rate in rates.values() if rate is not None]
    return sum(measured) / len(measured) if measured else None


def shares(total: int, rates: Mapping[PeerId, float | None]) -> dict[PeerId, int]:
    """Split `total` samples in proportion to tokens/s, by largest remainder; the shares add up to `total`.

    A node without a measured rate (None) counts as the mean of the others; with no rate at all the split is equal.
    Ties go to the smaller peer id, so that the split is a function of its inputs. Empty when `rates` is.
    """
    mean = mean_rate(rates)
    weights = {peer: rate if rate is not None else mean or 0.0 for peer, rate in rates.items()}
    whole = sum(weights.values())
    if whole <= 0:
        weights, whole = dict.fromkeys(rates, 1.0), float(len(rates))
    exact = {peer: total * weight / whole for peer, weight in weights.items()}
    split = {peer: int(amount) for peer, amount in exact.items()}
    by_remainder = sorted(exact, key=lambda peer: (split[peer] - exact[peer], peer))
    for peer in by_remainder[: total - sum(split.values())]:
        split[peer] += 1
    return split
