"""What a node follows: charter, roster and HEAD of its swarm, and the artifacts that its publisher announces.

    link (charter, roster, HEAD)  -->  exchange (who may publish, who is a member)
    exchange (notices)            -->  weights (announced, complete, gone)

Invariants: a publisher that contradicts itself is remembered on disk, and no work is taken until its generation ends.
An artifact that this machine cannot take is declined with figures; one that has no room now is asked about again every
HOUSEKEEPING_SECONDS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import trio

from aurora_node.folds import mark_of
from aurora_node.link import HostLink
from aurora_node.parts import Parts
from aurora_node.weights import Weights
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.artifact.retention import restart_route
from aurora_p2p.errors import StaleError, StoreError, UnreachableError, WireError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.files import write_durably
from aurora_p2p.local.log import trim
from aurora_p2p.net.drive import ExchangeDriver, Notice
from aurora_p2p.net.host import ControlHost
from aurora_p2p.swarm import events as ev
from aurora_p2p.swarm.roster import RosterView
from aurora_p2p.types import ArtifactId, Version
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import CommitFailed
from aurora_p2p.wire.names import head_topic
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.trust import Charter, Equivocation, Head

HOUSEKEEPING_SECONDS = 5.0
"""Between two looks at old artifacts, at log files, and at room for what had none."""


class Following:
    """Run one `run` after `begin`. `on_contradicted`: told whether the publisher is known to have contradicted itself.

    too_large: why this machine never takes an artifact; "" if it may.
    """

    def __init__(
        self,
        parts: Parts,
        control: ControlHost,
        driver: ExchangeDriver,
        link: HostLink,
        weights: Weights,
        too_large: Callable[[Manifest], str],
    ) -> None:
        self._parts, self._control, self._driver = parts, control, driver
        self._link, self._weights, self._too_large = link, weights, too_large
        self.on_contradicted: Callable[[bool], None] = lambda known: None
        link.on_roster = link.on_charter = self._trust_seen
        link.on_equivocation = self._equivocated
        self._news, self._hinted = trio.Event(), trio.Event()
        self._told_charter: Charter | None = None
        self._told_roster: RosterView | None = None
        self._recovered: set[ArtifactId] = set()
        self._proven_against = -1
        """Generation of the publisher that there is proof against, whether or not the disk took it."""

    @property
    def contradicted(self) -> bool:
        """Whether there is proof against the publisher of this generation."""
        return self._link.trust.floor.generation == self._proven_against or self._evidence.exists()

    async def begin(self) -> None:
        """After joining: tell the exchange whom to trust, then what is on disk."""
        await self._tell_exchange()
        found = await trio.to_thread.run_sync(lambda: self._parts.store.load(now=boottime()))
        reached = self._reached({manifest.artifact for manifest, _ in found if self._is_usable(manifest)})
        for manifest, have in found:
            complete = self._parts.store.is_complete(manifest.artifact)
            if manifest.publisher == self._parts.identity.peer and complete and self._is_of_publisher(manifest):
                self._weights.restored(manifest, complete=True, own=True)
                continue
            overtaken = not complete and manifest.header.version <= reached  # or it was being rebuilt
            if manifest.publisher != self._link.trust.publish or overtaken:
                self._parts.store.retire(manifest.artifact)
                continue
            await self._driver.feed(ev.Restored(manifest, have))
            self._link.run = manifest.header.run
            if not self._declined(manifest):  # the settings may have changed since
                self._weights.restored(manifest, complete=complete)

    def _is_usable(self, manifest: Manifest) -> bool:
        """Whether the publisher that is trusted now has signed it, or what was folded of it here."""
        own = manifest.publisher == self._parts.identity.peer and self._is_of_publisher(manifest)
        return own or manifest.publisher == self._link.trust.publish

    def _reached(self, usable: Collection[ArtifactId]) -> Version:
        """The version that the complete ones among these lead to; -1 without any."""
        complete = [one for one in self._parts.store.residents() if one.artifact in usable]
        return max((one.header.version for one in restart_route(complete)), default=Version(-1))

    def _is_of_publisher(self, manifest: Manifest) -> bool:
        """Whether what was folded here was made of publications of the key that is trusted now."""
        return manifest.header.nonce == mark_of(self._link.trust.publish)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with trio.open_nursery() as nursery:
            self._weights.on_unusable = lambda manifest, why: nursery.start_soon(self._recover, manifest, why)
            nursery.start_soon(self._follow_trust)
            nursery.start_soon(self._listen_for_hints)
            nursery.start_soon(self._refresh_on_hint)
            nursery.start_soon(self._watch_notices)
            nursery.start_soon(self._keep_house)

    # ---- trust and roster

    def _trust_seen(self, _roster: RosterView | None = None) -> None:
        """The charter or the roster changed."""
        self.on_contradicted(self.contradicted)
        self._news.set()

    async def _follow_trust(self) -> None:
        """Give the exchange each charter and roster."""
        while True:
            self._news = trio.Event()
            await self._tell_exchange()
            await self._news.wait()

    async def _tell_exchange(self) -> None:
        trust = self._link.trust
        if trust.charter is not None and trust.charter is not self._told_charter:
            self._told_charter = trust.charter
            await self._driver.feed(ev.TrustChanged(trust.publish, trust.hosts, trust.floor.generation))
        if trust.roster is not None and trust.roster is not self._told_roster:
            self._told_roster = trust.roster
            await self._driver.feed(ev.RosterChanged(trust.roster))

    @property
    def _evidence(self) -> Path:
        """Where proof against the publisher of this generation is kept: a restarted node stands still as well."""
        return self._parts.folder / f"equivocation-{self._link.trust.floor.generation}.bin"

    def _equivocated(self, evidence: Equivocation) -> None:
        self._proven_against = self._link.trust.floor.generation
        self.on_contradicted(True)
        try:
            write_durably(self._evidence, encode(evidence))
        except StoreError as error:  # it holds until the restart, and the publisher's two artifacts are still there
            self._parts.output.event("evidence-lost", f"proof against the publisher is not on disk: {error}")
        text = "the publisher signed two artifacts with one number: taking no work until its keys are renewed"
        self._parts.output.event("equivocation", text, evidence=str(self._evidence))

    async def _listen_for_hints(self) -> None:
        async with self._control.subscribe(head_topic(self._parts.ticket.swarm), self._is_hint) as messages:
            async for _ in messages:
                self._hinted.set()

    def _is_hint(self, _signer: object, payload: bytes) -> bool:
        """Whether a gossiped HEAD is the publisher's; only such are passed on."""
        try:
            open_signed(decode(payload, Signed, limit=16_384), Head, {self._link.trust.publish})
        except WireError:
            return False
        return True

    async def _refresh_on_hint(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted = trio.Event()
            try:
                await self._link.challenge()
            except (UnreachableError, StaleError, WireError) as error:
                self._parts.output.event("stale", f"no fresh HEAD: {error}")

    # ---- artifacts

    async def _watch_notices(self) -> None:
        async for notice in self._driver.notices:
            await self._notice(notice)

    async def _notice(self, notice: Notice) -> None:
        output = self._parts.output
        match notice:
            case ev.Announced(manifest):
                await self._announced(manifest)
            case ev.Completed(artifact):
                await self._weights.completed(artifact)
            case ev.AbortSeen(artifact) | ev.Contradicted(artifact):
                self._weights.forget(artifact)
            case ev.Banned(peer, seconds, reason):
                output.event("banned", f"banned {peer} for {seconds:.0f} s: {reason}", peer=peer, reason=reason)
            case ev.Equivocated(evidence):
                self._equivocated(evidence)

    async def _announced(self, manifest: Manifest) -> None:
        if self._declined(manifest):
            await self._driver.feed(ev.Decline(manifest.artifact))
            return
        self._link.run = manifest.header.run
        await self._weights.announced(manifest)

    def _declined(self, manifest: Manifest) -> bool:
        """Whether this machine never takes an artifact; its owner is told why."""
        why = self._too_large(manifest)
        if why:
            self._weights.problem = why
            self._parts.output.event("declined", why, version=manifest.header.version)
        return bool(why)

    async def _recover(self, manifest: Manifest, why: str) -> None:
        """An artifact could not be staged: tell the host, then, once, blame the disk and after it the engine.

        Segments that rotted on disk are fetched again; if all are right, the engine is rebuilt from the store. An
        artifact that fails a second time is left aside: a later snapshot takes its place.
        """
        await self._link.commit_failed(CommitFailed(manifest.header.version, why[:500]))
        if manifest.artifact in self._recovered:
            return
        self._recovered.add(manifest.artifact)
        if manifest.publisher == self._parts.identity.peer:  # folded here: nobody else has it
            await trio.to_thread.run_sync(self._parts.store.retire, manifest.artifact)
            return
        await self._driver.feed(ev.Retire(manifest.artifact))
        try:
            good = await trio.to_thread.run_sync(self._parts.store.verify, manifest.artifact)
        except StoreError as error:  # it cannot even be read: a later snapshot takes its place
            self._parts.output.event("unreadable", f"version {manifest.header.version} cannot be read back: {error}")
            return
        await self._driver.feed(ev.Restored(manifest, good))
        complete = self._parts.store.is_complete(manifest.artifact)
        self._weights.restored(manifest, complete=complete)
        if complete:
            self._weights.rebase()

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_SECONDS)
            for name in ("bulk.log", "engine.log", "fold.log"):
                trim(self._parts.home / name)
            try:
                await self._retire_old()
            except StoreError as error:  # the next round tries again
                self._parts.output.note("not-retired", why=str(error))
            await self._weights.accept_wanted()

    async def _retire_old(self) -> None:
        store = self._parts.store
        pruned = await trio.to_thread.run_sync(lambda: store.prune(now=boottime()))
        for artifact in [*pruned, *self._weights.passed_by()]:
            self._weights.forget(artifact)
            await self._driver.feed(ev.Retire(artifact))
        for artifact in self._weights.outdated():
            await self._driver.feed(ev.Retire(artifact))
            await trio.to_thread.run_sync(store.retire, artifact)
