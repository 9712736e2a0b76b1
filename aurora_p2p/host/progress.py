"""What nodes say they do about newer weights: the newest report of each member, for status and screen.

Sans-IO. Nothing is decided by a report but for whom a squash is worth making (laggards.py): a node that lies misleads
the reader. At most one report a member
is kept, for members only, and each may send REPORTS_PER_SECOND on average: a peer cannot make the host spend more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aurora_p2p.host.laggards import Standing
from aurora_p2p.local.output import clean
from aurora_p2p.types import PeerId, Version
from aurora_p2p.wire.control import Progress, Reason, Refusal

REPORTS_PER_SECOND = 2.0
"""Twice what an honest node sends."""
REPORT_BURST = 10
"""Reports that may come at once: a node whose connection stood still catches up."""
STATE_LETTERS = 120
STANDING_SECONDS = 40.0
"""A report counts for what a member holds so long: two of them may get lost (node/reporting.py repeats each)."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report as it is shown: text cleaned, counts consistent. at: when it came, CLOCK_BOOTTIME."""

    fetching: Version
    have: int
    total: int
    staged: Version
    committed: Version
    state: str
    at: float


@dataclass(slots=True)
class _Allowance:
    """Reports that a peer may still send: refilled with time, up to REPORT_BURST."""

    left: float
    at: float

    def spend(self, now: float) -> bool:
        self.left = min(REPORT_BURST, self.left + (now - self.at) * REPORTS_PER_SECOND)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class ProgressBoard:
    """The newest report of each member."""

    def __init__(self) -> None:
        self._reports: dict[PeerId, Report] = {}
        self._allowances: dict[PeerId, _Allowance] = {}

    def report(self, peer: PeerId, progress: Progress, *, now: float) -> Refusal | None:
        """Take a member's report, or refuse it by name."""
        allowance = self._allowances.setdefault(peer, _Allowance(REPORT_BURST, now))
        if not allowance.spend(now):
            detail = f"at most {REPORTS_PER_SECOND:g} reports a second"
            return Refusal(Reason.TOO_OFTEN, detail, retry_seconds=1 / REPORTS_PER_SECOND)
        self._reports[peer] = Report(
            fetching=progress.fetching,
            have=min(progress.have, progress.total or progress.have),
            total=progress.total,
            staged=progress.staged,
            committed=progress.committed,
            state=clean(progress.state, STATE_LETTERS),
            at=now,
        )
        return None

    def of(self, peer: PeerId) -> Report | None:
        """The newest report of a member; None before its first."""
        return self._reports.get(peer)

    def standings(self, *, now: float) -> dict[PeerId, Standing]:
        """The newest version of each member that has reported lately, decoded or served."""
        return {
            peer: Standing(report.staged, report.at)
            for peer, report in self._reports.items()
            if now - report.at <= STANDING_SECONDS
        }

    def retain(self, members: Collection[PeerId]) -> None:
        """Forget everybody else."""
        for kept in (self._reports, self._allowances):
            for peer in [peer for peer in kept if peer not in members]:
                del kept[peer]
