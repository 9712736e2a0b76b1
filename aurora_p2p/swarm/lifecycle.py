"""The life of an artifact in the exchange machine: it becomes known, complete, and is dropped.

known --final page--> its length is known --every segment--> COMPLETE
known, complete --Retire | Abort | contradiction | equivocation--> dropped, everywhere
"""

from __future__ import annotations

from aurora_p2p.artifact.manifest import Manifest, artifact_id_of
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.announcing import Announcer
from aurora_p2p.swarm.catalog import Holding
from aurora_p2p.swarm.downlink import Downlink
from aurora_p2p.swarm.table import Table
from aurora_p2p.swarm.uplink import Uplink
from aurora_p2p.types import ArtifactId
from aurora_p2p.wire import exchange as frames
from aurora_p2p.wire.signed import Signed
from aurora_p2p.wire.trust import Equivocation


class Lifecycle:
    def __init__(self, table: Table, announcer: Announcer, uplink: Uplink, downlink: Downlink) -> None:
        self._table, self._catalog = table, table.catalog
        self._announcer, self._uplink, self._downlink = announcer, uplink, downlink

    def known(self, manifest: Manifest, *, origin: bool) -> Holding:
        """An artifact of our own process: it is known without being asked about."""
        if self._catalog.full:
            raise ValueError(f"{len(self._catalog.artifacts)} artifacts are known; Retire some first")
        return self._catalog.add(manifest, origin=origin)

    def final_known(self, holding: Holding) -> None:
        """Its length is known now."""
        final = holding.manifest.final
        if final is not None:
            holding.fetch.needed = (1 << final.segments) - 1
        if holding.seeder:
            holding.seeder.finish()
        self._announcer.offer_to_all(holding)
        self.complete(holding)

    def complete(self, holding: Holding) -> None:
        """Say so once, when everything is there."""
        fetch = holding.fetch
        if holding.complete or holding.manifest.final is None or fetch.needed & ~fetch.have:
            return
        if not holding.manifest.pages_complete or not (fetch.wanted or holding.seeder):
            return
        holding.complete = True
        self._table.askable = True  # another artifact may have its turn
        if not holding.seeder:
            self._table.emit(ev.Completed(holding.artifact))

    def grant(self, holding: Holding) -> None:
        """Let all who may push to us do so."""
        for link in self._table.links.values():
            self._downlink.grant(link, holding)

    def contradicted(self, artifact: ArtifactId, reason: str) -> None:
        self._table.emit(ev.Contradicted(artifact, reason))
        self.drop(artifact)

    def abort(self, signed: Signed) -> None:
        """Drop what the publisher gave up, and pass that on once."""
        artifact = self._catalog.abort(signed)
        if artifact is None:
            return
        for link in self._table.links.values():
            self._table.send(link, frames.Drop(signed))
        if artifact in self._catalog.artifacts:
            self._table.emit(ev.AbortSeen(artifact))
            self.drop(artifact)

    def equivocated(self, evidence: Equivocation) -> None:
        """If the proof holds: stop, drop both artifacts, pass it on once."""
        if self._catalog.halted or not self._catalog.is_equivocation(evidence):
            return
        self._catalog.halt()
        for link in self._table.links.values():
            self._table.send(link, frames.Evidence(evidence.first, evidence.second))
        self._table.emit(ev.Equivocated(evidence))
        for signed in (evidence.first, evidence.second):
            self.drop(artifact_id_of(signed))

    def drop(self, artifact: ArtifactId) -> None:
        """Forget it: send, ask and announce no more of it."""
        if artifact not in self._catalog.artifacts:
            return
        self._uplink.forget(artifact)
        self._downlink.forget(artifact)
        self._announcer.forget(artifact)
        del self._catalog.artifacts[artifact]
        for link in self._table.links.values():
            link.offers.pop(artifact, None)
            link.pages = {page for page in link.pages if page[0] != artifact}
