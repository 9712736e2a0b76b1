"""The roster's way out: a new epoch between artifacts, to the exchange at once, to nodes as a hint to ask.

A change sets `due`; while an artifact is in flight from here it waits, however many more changes come meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from aurora_p2p.host.desk import PublicationDesk
from aurora_p2p.host.membership import Membership
from aurora_p2p.net.drive import ExchangeDriver
from aurora_p2p.net.host import ControlHost
from aurora_p2p.swarm.events import RosterChanged
from aurora_p2p.swarm.roster import open_roster
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.names import head_topic
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trust import Delegation

LOOK_SECONDS = 0.05
"""Between two looks whether the artifact in flight is out: publications take seconds."""


class Rosters:
    """Renews rosters and sends HEAD hints. head: the hint to send, None while nothing is published."""

    def __init__(
        self, delegation: Delegation, members: Membership, desk: PublicationDesk, driver: ExchangeDriver
    ) -> None:
        self._delegation, self._members, self._desk, self._driver = delegation, members, desk, driver
        self._due, self._hint_due = trio.Event(), trio.Event()
        self.head: Callable[[], Signed | None] = lambda: None

    def changed(self) -> None:
        """Somebody joined, left, or moved."""
        self._due.set()

    def hint(self) -> None:
        """There is a new HEAD or roster to ask for."""
        self._hint_due.set()

    async def keep_renewed(self) -> None:
        """A changed roster gets a new epoch, but never while an artifact is in flight from here. Until cancelled."""
        while True:
            await self._due.wait()
            self._due = trio.Event()
            while self._desk.busy:
                await trio.sleep(LOOK_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        """Seal and hand over a new roster, if anything changed."""
        if not self._members.renew():
            return
        view = open_roster(self._members.signed, swarm=self._delegation.swarm, admit=self._delegation.admit)
        await self._driver.feed(RosterChanged(view))
        self.hint()

    async def send_hints(self, control: ControlHost) -> None:
        """Gossip the HEAD whenever there is news. Until cancelled."""
        topic = head_topic(self._delegation.swarm)
        while True:
            await self._hint_due.wait()
            self._hint_due = trio.Event()
            head = self.head()
            if head is not None:
                await control.publish(topic, encode(head))
