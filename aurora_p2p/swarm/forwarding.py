"""A first holder's pushes: every segment that the origin sent us goes to one gateway in each other region.

    a host sends it to us, we store it --> TODO(region) --a linked member there has credit--> PUSHED(gateway)
    TODO --somebody of that region announces it--> done
    PUSHED --credit for it comes back: it is stored there--> done
    PUSHED --the link to the gateway is lost--> TODO

Whoever cannot be pushed to now (not linked, no credit left) is passed over for the next in the segment's order, so a
dead or slow gateway holds up no more than the credit it gave. So is, while there is anybody else, whoever of its region
is doubted: others there ask us for what it has (link.py). A push that leads nowhere is repaired by those who wait
for it (crossing.py); nobody watches it here. What a member asks for itself is a push to it that needs no credit.

Sans-IO. One object per artifact, in every node; only first holders have something TODO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from aurora_p2p.swarm.bitset import bits
from aurora_p2p.swarm.geography import Geography
from aurora_p2p.swarm.link import Link
from aurora_p2p.types import ArtifactId, PeerId

MAX_PENDING = 2
"""Pushes under way to a gateway beyond which another one is preferred: one that died takes no more with it."""
MAX_GATEWAY_CREDIT = 16
"""Pushes of one artifact that a member of another region may grant: twice what ours do (downlink.GATEWAY_CREDIT)."""


class Forwarding:
    def __init__(self) -> None:
        self.credit: dict[PeerId, int] = {}
        """Pushes that members of other regions will still take."""
        self._todo: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        """What each other region has, as far as we were told."""
        self._pushed: dict[PeerId, int] = {}
        self._pending: dict[PeerId, deque[int]] = {}
        """Pushes that their gateways have not stored yet, the oldest first."""

    def first_held(self, index: int, regions: Collection[int]) -> None:
        """The origin's copy is ours and stored; it is due to these regions."""
        for region in regions:
            self._todo[region] = self._todo.get(region, 0) | 1 << index

    def was_pushed(self, peer: PeerId) -> int:
        """What was handed over to this gateway."""
        return self._pushed.get(peer, 0)

    def reached(self, region: int, mask: int) -> None:
        """Somebody there announced these."""
        self._reached[region] = self._reached.get(region, 0) | mask
        if region in self._todo:
            self._todo[region] &= ~mask

    def grant(self, peer: PeerId, segments: int) -> None:
        pending = self._pending.get(peer, deque())
        for _ in range(min(segments, len(pending))):  # credit comes back for every push that is stored
            pending.popleft()
        self.credit[peer] = min(self.credit.get(peer, 0) + segments, MAX_GATEWAY_CREDIT)

    def is_due(self, region: int, index: int) -> bool:
        """Whether a member of the region who asks for it asks for the first copy there."""
        return bool(self._todo.get(region, 0) >> index & 1)

    @property
    def is_idle(self) -> bool:
        return not any(self._todo.values())

    def is_first(self, peer: PeerId, region: int | None, index: int) -> bool:
        """Whether this peer is to be the first of its region to have the segment."""
        pushed = self._pushed.get(peer, 0) & ~self._reached.get(region, 0) if region is not None else 0
        return bool(pushed >> index & 1)

    def choose(
        self, links: Mapping[PeerId, Link], artifact: ArtifactId, geography: Geography
    ) -> tuple[PeerId, int, int] | None:
        """The next (gateway, region, segment) among links with room; regions that wait for most go first."""
        for region, todo in sorted(self._todo.items(), key=lambda item: -item[1].bit_count()):
            if not todo:
                continue
            ready = [peer for peer in links if self.credit.get(peer, 0) > 0 and geography.region_of(peer) == region]
            if not ready:
                continue
            ready = [peer for peer in ready if not links[peer].doubted] or ready
            ready = [peer for peer in ready if len(self._pending.get(peer, ())) < MAX_PENDING] or ready
            index = next(bits(todo))
            gateways = geography.order(artifact, index, ready)
            if gateways:
                return gateways[0], region, index
        return None

    def push(self, peer: PeerId, region: int, index: int, *, asked: bool) -> None:
        """It is handed over to this gateway."""
        self._todo[region] &= ~(1 << index)
        self._pushed[peer] = self._pushed.get(peer, 0) | 1 << index
        if not asked:
            self.credit[peer] -= 1
            self._pending.setdefault(peer, deque()).append(index)

    def withdraw(self, peer: PeerId, region: int | None, index: int) -> None:
        """It did not leave, though we may still have it: rather to another one."""
        if self._pushed.get(peer, 0) >> index & 1 and region is not None:
            self._pushed[peer] &= ~(1 << index)
            if not self._reached.get(region, 0) >> index & 1:
                self._todo[region] = self._todo.get(region, 0) | 1 << index

    def lost(self, index: int) -> None:
        """We have it no more."""
        for region in self._todo:
            self._todo[region] &= ~(1 << index)

    def forget(self, peer: PeerId, region: int | None) -> None:
        """The link is gone, and with it what was pushed and not stored yet."""
        self.credit.pop(peer, None)
        self._pushed.pop(peer, None)
        lost = self._pending.pop(peer, ())
        if region is None:
            return
        for index in lost:
            if not self._reached.get(region, 0) >> index & 1:
                self._todo[region] = self._todo.get(region, 0) | 1 << index
