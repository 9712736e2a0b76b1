"""Who gets how many samples: measured throughput, split by largest remainder.

tau <- 0.8 tau + 0.2 (tokens/s of the lease that just ended); a lease of several times the usual length counts as that
many
"""

from __future__ import annotations

from collections.abc import Mapping

from aurora_p2p.types import PeerId

MEMORY = 0.8
"""Weight of the past in the moving average (AuroraRL's)."""
MIN_SECONDS = 1e-3
"""A lease is never timed shorter than this: a result that came at once is no proof of infinite speed."""


def updated_rate(rate: float | None, tokens: float, seconds: float, leases: float = 1.0) -> float:
    """The moving average after one more lease, tokens/s. rate: None before the first one.

    leases: how many it counts as. Long ones would make it slow to follow a machine that throttles, if they counted no
    more than short ones.
    """
    observed = tokens / max(seconds, MIN_SECONDS)
    memory = MEMORY**leases
    return observed if rate is None else memory * rate + (1 - memory) * observed


def mean_rate(rates: Mapping[PeerId, float | None]) -> float | None:
    """Mean of the measured rates, tokens/s; None when there is none."""
    measured = [rate for rate in rates.values() if rate is not None]
    return sum(measured) / len(measured) if measured else None


def shares(
    total: int, rates: Mapping[PeerId, float | None], held: Mapping[PeerId, float] | None = None
) -> dict[PeerId, int]:
    """Split `total` samples in proportion to tokens/s, by largest remainder; the shares add up to `total`.

    held: samples that nodes still work on. The split is then the one after which all are done at the same moment; who
    holds more than its part of the whole gets none.
    A node without a measured rate (None) counts as the mean of the others; with no rate at all the split is equal.
    Ties go to the smaller peer id, so that the split is a function of its inputs. Empty when `rates` is.
    """
    mean = mean_rate(rates)
    weights = {peer: rate if rate is not None else mean or 0.0 for peer, rate in rates.items()}
    if not any(weights.values()):
        weights = dict.fromkeys(rates, 1.0)
    exact = _exact(total, weights, held or {})
    split = {peer: int(amount) for peer, amount in exact.items()}
    by_remainder = sorted(exact, key=lambda peer: (split[peer] - exact[peer], peer))
    for peer in by_remainder[: total - sum(split.values())]:
        split[peer] += 1
    return {peer: split.get(peer, 0) for peer in rates}


def _exact(total: int, weights: Mapping[PeerId, float], held: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """What each gets, in fractions of a sample; who gets none is left out."""
    sharing = {peer: weight for peer, weight in weights.items() if weight > 0}
    while True:
        whole = sum(sharing.values())
        pool = total + sum(held.get(peer, 0.0) for peer in sharing)
        exact = {peer: pool * weight / whole - held.get(peer, 0.0) for peer, weight in sharing.items()}
        sated = [peer for peer, amount in exact.items() if amount < 0]
        if not sated:
            return exact
        for peer in sated:
            del sharing[peer]
