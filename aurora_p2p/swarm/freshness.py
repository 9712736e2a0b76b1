"""Whom to believe now: the charter in force, the newest HEAD, and whether it is fresh.

    NO CHARTER --adopt--> STALE --answer to our nonce--> FRESH --HEAD_TTL_SECONDS--> STALE
    any --two HEADs with one seq--> HALTED --adopt a higher generation--> STALE

Everything a role says is monotonic: the generation of the delegation and the length of the root chain, and within a
generation the seq of HEAD and the epoch of the roster. A higher generation starts seq and epoch anew, because HEADs and
rosters name their generation: that is how a swarm recovers from a stolen publish key that signed the highest seq.
Freshness is a challenge: its age counts from *sending* the nonce, on our own clock; no wall clock is involved.

Sans-IO. A caller asks again before the TTL is over; nothing here talks to anyone.
"""

from __future__ import annotations

from aurora_p2p.crypto.sign import WIRE_VERSION
from aurora_p2p.errors import StaleError, WireError
from aurora_p2p.swarm.roster import RosterView, open_roster
from aurora_p2p.types import Generation, PeerId, Seq, SwarmId
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.trust import Abort, Charter, Delegation, Equivocation, Floor, Head, Succession

HEAD_TTL_SECONDS = 120.0
MAX_NONCES = 16
"""Challenges under way; more are older than any answer worth waiting for."""


class Trust:
    """One swarm as this process believes it. `floor` is the oldest (generation, seq) still accepted."""

    def __init__(self, swarm: SwarmId, floor: Floor | None = None) -> None:
        self.swarm = swarm
        self.charter: Charter | None = None
        self.head: Head | None = None
        self.signed_head: Signed | None = None
        self.roster: RosterView | None = None
        self.evidence: Equivocation | None = None
        """Proof that the publisher said two things at once; no work is taken until a higher generation."""
        self._delegation: Delegation | None = None
        self._floor = floor or Floor(Generation(0), Seq(0))
        self._fresh_at = float("-inf")
        self._nonces: dict[bytes, float] = {}

    @property
    def delegation(self) -> Delegation:
        """The delegation in force. Raises StaleError before the first charter."""
        if self._delegation is None:
            raise StaleError("no charter of this swarm is known yet")
        return self._delegation

    @property
    def publish(self) -> PeerId:
        return self.delegation.publish

    @property
    def admit(self) -> PeerId:
        return self.delegation.admit

    @property
    def lease(self) -> PeerId:
        return self.delegation.lease

    @property
    def hosts(self) -> frozenset[PeerId]:
        return frozenset(self.delegation.hosts)

    @property
    def floor(self) -> Floor:
        """To be persisted, so that a restart cannot be rolled back."""
        return self._floor

    def is_fresh(self, now: float) -> bool:
        """Whether the host's word is young enough to take work on it."""
        return self.evidence is None and now - self._fresh_at <= HEAD_TTL_SECONDS

    def head_age(self, now: float) -> float | None:
        """Seconds since the challenge was sent that the newest HEAD answers; None before the first."""
        return None if self._fresh_at == float("-inf") else now - self._fresh_at

    def adopt(self, charter: Charter) -> bool:
        """Take a charter; True when it is news.

        Raises SignatureError or WireError when the chain does not lead from the swarm id to the delegation, StaleError
        when its generation, or its root chain, is behind what was seen.
        """
        root = self._root_of(charter)
        delegation = open_signed(charter.delegation, Delegation, {root})
        if delegation.swarm != self.swarm:
            raise WireError("the delegation belongs to another swarm")
        known = self._delegation
        if known is not None and known == delegation:
            return False
        if delegation.generation < self._floor.generation:
            raise StaleError(
                f"generation {delegation.generation} was revoked by {self._floor.generation}",
                hint="this host runs with old keys: its operator has newer ones, and a ticket that names them",
            )
        if known is not None and delegation.generation == known.generation:
            raise StaleError(f"two delegations claim generation {delegation.generation}")
        if self.charter is not None and len(charter.successions) < len(self.charter.successions):
            raise StaleError("the delegation is signed by a root that has been succeeded")
        self.charter, self._delegation, self.evidence = charter, delegation, None
        self._fresh_at = float("-inf")
        if delegation.generation > self._floor.generation:
            self._floor = Floor(delegation.generation, Seq(0))
            self.head = self.signed_head = None
        return True

    def challenge(self, nonce: bytes, now: float) -> None:
        """A 32-byte random nonce is being sent."""
        self._nonces[nonce] = now
        while len(self._nonces) > MAX_NONCES:
            del self._nonces[next(iter(self._nonces))]

    def answer(self, signed: Signed, now: float) -> Head | Equivocation:
        """A HEAD over one of our nonces; it makes us fresh as of the moment that the nonce was sent.

        Raises SignatureError or WireError when it is not the publisher's or answers no nonce of ours, StaleError when
        it is behind what was seen or too old. Two HEADs with one seq and different artifacts return the proof.
        """
        head = self._open_head(signed)
        sent = self._nonces.pop(head.nonce, None)
        if sent is None:
            raise WireError("the HEAD answers no challenge of ours")
        if now - sent > HEAD_TTL_SECONDS:
            raise StaleError(f"the HEAD answers a challenge of {now - sent:.0f} s ago")
        taken = self._take(head, signed)
        if isinstance(taken, Head):
            self._fresh_at = max(self._fresh_at, sent)
        return taken

    def hint(self, signed: Signed) -> Head | Equivocation:
        """A gossiped HEAD: raises and returns like `answer`, and makes nothing fresh."""
        return self._take(self._open_head(signed), signed)

    def take_roster(self, signed: Signed) -> RosterView:
        """Replace the roster by a newer one. Raises like open_roster, and StaleError for another generation."""
        view = open_roster(signed, swarm=self.swarm, admit=self.admit, newer_than=self.roster)
        if view.generation != self.delegation.generation:
            raise StaleError(f"the roster is of generation {view.generation}, not {self.delegation.generation}")
        self.roster = view
        return view

    def open_abort(self, signed: Signed) -> Abort:
        """Raises SignatureError or WireError when it is not the publisher's word about this swarm."""
        abort = open_signed(signed, Abort, {self.publish})
        if abort.swarm != self.swarm:
            raise WireError("the abort belongs to another swarm")
        return abort

    def _root_of(self, charter: Charter) -> PeerId:
        root = PeerId(self.swarm)
        for index, signed in enumerate(charter.successions, 1):
            step = open_signed(signed, Succession, {root})
            if step.swarm != self.swarm or step.index != index:
                raise WireError(f"root succession {index} is out of place")
            root = step.successor
        return root

    def _open_head(self, signed: Signed) -> Head:
        head = open_signed(signed, Head, {self.publish})
        if head.swarm != self.swarm:
            raise WireError("the HEAD belongs to another swarm")
        if head.min_wire > WIRE_VERSION:
            raise WireError(
                f"the swarm needs wire version {head.min_wire}, this program speaks {WIRE_VERSION}",
                hint="upgrade: pip install --upgrade aurora-p2p",
            )
        if head.generation != self.delegation.generation:
            raise StaleError(f"the HEAD is of generation {head.generation}, not {self.delegation.generation}")
        return head

    def _take(self, head: Head, signed: Signed) -> Head | Equivocation:
        known = self.head
        if head.seq < self._floor.seq:
            raise StaleError(f"HEAD names seq {head.seq}; {self._floor.seq} was seen already")
        if known is not None and head.roster_epoch < known.roster_epoch:
            raise StaleError(f"HEAD names roster epoch {head.roster_epoch}; {known.roster_epoch} was seen already")
        if known is not None and self.signed_head is not None and head.seq == known.seq:
            told = (known.version, known.artifact, known.manifest_hash)
            if (head.version, head.artifact, head.manifest_hash) != told:
                self.evidence = Equivocation(self.signed_head, signed)
                return self.evidence
        self.head, self.signed_head = head, signed
        self._floor = Floor(self._floor.generation, head.seq)
        return head
