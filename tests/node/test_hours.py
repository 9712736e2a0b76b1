"""Windows of the week, as an owner writes them."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_node.hours import MAX_WINDOWS, Hours, parse_hours
from aurora_p2p.errors import UsageError

MONDAY = datetime(2026, 3, 2)


def at(day, clock):
    hours, minutes = clock.split(":")
    return MONDAY + timedelta(days=day, hours=int(hours), minutes=int(minutes))


def test_no_window_means_always():
    assert parse_hours(()).open_at(MONDAY)
    assert parse_hours(()).next_change(MONDAY) is None


@pytest.mark.parametrize(
    ("texts", "day", "clock", "open_"),
    [
        (("22:00-07:00",), 0, "21:59", False),
        (("22:00-07:00",), 0, "22:00", True),
        (("22:00-07:00",), 0, "06:59", True),
        (("22:00-07:00",), 0, "07:00", False),
        (("Mon-Fri 18:00-08:00",), 4, "18:00", True),
        (("Mon-Fri 18:00-08:00",), 5, "07:59", True),  # the night that began on Friday
        (("Mon-Fri 18:00-08:00",), 5, "18:00", False),
        (("Mon-Fri 18:00-08:00",), 0, "03:00", False),  # Sunday's night is none
        (("Sun 20:00-06:00",), 0, "05:59", True),  # past the end of the week
        (("Fri-Mon 10:00-11:00",), 0, "10:30", True),
        (("Fri-Mon 10:00-11:00",), 2, "10:30", False),
        (("Sat 00:00-24:00",), 5, "23:59", True),
        (("Sat 00:00-24:00",), 6, "00:00", False),
        (("09:00-09:00",), 3, "08:00", True),  # all day long
        (("Mon 08:00-09:00", "tue 08:00-09:00"), 1, "08:30", True),
    ],
)
def test_a_window_is_open_from_its_first_minute_to_the_one_before_its_last(texts, day, clock, open_):
    assert parse_hours(texts).open_at(at(day, clock)) is open_


@pytest.mark.parametrize(
    "text", ["", "22-07", "22:00", "25:00-07:00", "22:60-07:00", "22:00-24:01", "Mox 22:00-07:00", "Mon,Tue 1:00-2:00"]
)
def test_what_is_no_window_is_named_with_one_that_is(text):
    with pytest.raises(UsageError, match="no window of the week") as refused:
        parse_hours(["08:00-09:00", text])
    assert "22:00-07:00" in refused.value.hint


def test_there_is_a_bound_on_windows():
    parse_hours(["08:00-09:00"] * MAX_WINDOWS)
    with pytest.raises(UsageError, match="at most"):
        parse_hours(["08:00-09:00"] * (MAX_WINDOWS + 1))


@pytest.mark.parametrize(
    ("text", "day", "clock", "change_day", "change"),
    [
        ("22:00-07:00", 0, "12:00", 0, "22:00"),
        ("22:00-07:00", 0, "22:00", 1, "07:00"),
        ("Mon-Fri 18:00-08:00", 5, "09:00", 7, "18:00"),
        ("Sun 20:00-06:00", 6, "21:00", 7, "06:00"),
    ],
)
def test_the_next_change_is_the_next_edge_of_the_week(text, day, clock, change_day, change):
    assert parse_hours([text]).next_change(at(day, clock)) == at(change_day, change)


def test_windows_that_touch_have_no_edge_between_them():
    assert parse_hours(["08:00-12:00", "12:00-13:00"]).next_change(at(0, "09:00")) == at(0, "13:00")
    assert parse_hours(["00:00-24:00"]).next_change(at(0, "09:00")) is None


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7 * 1440 - 1), st.integers(1, 1440)), max_size=4),
    st.integers(0, 7 * 1440 - 1),
    st.integers(0, 59),
)
def test_the_next_change_is_the_first_minute_that_differs(windows, minute, seconds):
    hours = Hours(tuple((start, start + length) for start, length in windows))
    now = MONDAY + timedelta(minutes=minute, seconds=seconds)
    found = hours.next_change(now)
    later = (MONDAY + timedelta(minutes=minute + ahead) for ahead in range(1, 7 * 1440 + 1))
    assert found == next((then for then in later if hours.open_at(then) != hours.open_at(now)), None)


def test_where_the_zone_changes_its_offset_windows_follow_the_clock_on_the_wall():
    zone = ZoneInfo("Europe/Berlin")
    before = datetime(2026, 3, 28, 23, 0, tzinfo=zone)  # the night in which 02:00 becomes 03:00
    change = parse_hours(["22:00-07:00"]).next_change(before)
    assert (change.hour, change.day) == (7, 29)
    assert change.timestamp() - before.timestamp() == 7 * 3600  # eight on the wall
