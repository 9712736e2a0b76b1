"""The date can be moved, and nothing but the date moves with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from aurora_p2p.errors import UsageError
from aurora_p2p.local.clock import OFFSET, boottime, wall, wall_offset

MONTH = timedelta(days=30)


@pytest.mark.parametrize("shift", [MONTH, -MONTH])
def test_the_wall_clock_is_shifted_by_the_environment_and_the_machines_clock_is_not(
    shift: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = boottime()
    monkeypatch.setenv(OFFSET, str(shift.total_seconds()))
    assert abs(wall() - shift - datetime.now(UTC)) < timedelta(seconds=60)
    assert 0 <= boottime() - before < 60


def test_without_an_offset_the_wall_clock_is_the_machines_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OFFSET, raising=False)
    assert abs(wall() - datetime.now(UTC)) < timedelta(seconds=60)
    assert wall().tzinfo is UTC


@pytest.mark.parametrize("text", ["a month", "nan", "inf", "1e12"])
def test_an_offset_that_is_no_number_of_seconds_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(UsageError, match=OFFSET):
        wall_offset(text)
