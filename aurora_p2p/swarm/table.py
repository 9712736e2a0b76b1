"""What the parts of one exchange machine share: links, artifacts, and the effects of the event being handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aurora_p2p.swarm.catalog import Catalog, Holding
from aurora_p2p.swarm.events import Effect, SendFrame
from aurora_p2p.swarm.geography import Geography
from aurora_p2p.swarm.link import Link
from aurora_p2p.swarm.origin import Seeder
from aurora_p2p.swarm.strikes import Strikes
from aurora_p2p.types import PeerId
from aurora_p2p.wire.exchange import ExchangeFrame

if TYPE_CHECKING:
    from random import Random


class Table:
    def __init__(self, catalog: Catalog, rng: Random) -> None:
        self.catalog = catalog
        self.geography: Geography = catalog.geography
        self.rng = rng
        self.links: dict[PeerId, Link] = {}
        self.strikes = Strikes()
        self.sparse = False
        """So few of our region are linked that they cannot be all we ask."""
        self.askable = True
        """Something may have changed in what can be asked of whom since that was looked at last."""
        self._effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, link: Link, frame: ExchangeFrame) -> None:
        self._effects.append(SendFrame(link.peer, frame))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def seeding(self) -> list[tuple[Holding, Seeder]]:
        """Artifacts of which we are the origin: live ones first, then by age."""
        ours = [(h, h.seeder) for h in self.catalog.artifacts.values() if h.seeder]
        return sorted(ours, key=lambda pair: (pair[0].fetch.catch_up, pair[0].seq))

    def forwarding(self) -> list[Holding]:
        """Artifacts of which something is to be pushed to other regions: live ones first, then by age."""
        due = [h for h in self.catalog.artifacts.values() if not h.forwarding.is_idle]
        return sorted(due, key=lambda h: (h.fetch.catch_up, h.seq))
