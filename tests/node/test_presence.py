"""When this machine works: examples of each reason, and what holds whatever happens."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aurora_node.hours import parse_hours
from aurora_node.presence import (
    ENTER_SECONDS,
    GIB,
    LEAVE_SECONDS,
    POWER_SECONDS,
    ROOM_SECONDS,
    Measured,
    OwnerSays,
    Policy,
    Presence,
)

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)  # a Monday
QUIET = Measured(cpu_others=0.0, gpu_others=0.0, on_battery=False, free_ram=100 * GIB, free_disk=100 * GIB)


class Machine:
    """A presence with its clocks, which `after` moves together."""

    def __init__(self, policy=None):
        self.presence = Presence(policy or Policy())
        self.now, self.local = 1000.0, NOON

    def sees(self, **found):
        return self.presence.handle(
            Measured(**{**{name: getattr(QUIET, name) for name in QUIET.__slots__}, **found}),
            now=self.now,
            local=self.local,
        )

    def owner(self, paused):
        return self.presence.handle(OwnerSays(paused), now=self.now, local=self.local)

    def after(self, seconds):
        self.now += seconds
        self.local += timedelta(seconds=seconds)
        return self.presence.expire(now=self.now, local=self.local)

    def lasting(self, seconds, **found):
        """The same measurement every 5 s for a while; the last stance."""
        for _ in range(int(seconds // 5)):
            self.sees(**found)
            self.after(5.0)
        return self.sees(**found)


def test_a_machine_works_unless_there_is_a_reason_not_to():
    machine = Machine(Policy(cpu_percent=50, gpu_percent=50, min_free_ram=GIB, min_free_disk=GIB))
    assert machine.after(0.0).working
    assert machine.lasting(60).status() == {
        "working": True,
        "paused_by": "",
        "detail": "",
        "until": "",
        "unloaded": False,
        "fetching": True,
    }


def test_what_is_not_known_never_pauses():
    machine = Machine(Policy(cpu_percent=50, gpu_percent=50, min_free_ram=GIB, min_free_disk=GIB))
    for _ in range(20):
        stance = machine.presence.handle(Measured(), now=machine.now, local=machine.local)
        machine.after(5.0)
    assert stance.working


def test_the_owner_pauses_at_once_and_a_lease_in_hand_goes_back():
    machine = Machine()
    stance = machine.owner(True)
    assert (stance.working, stance.paused_by, stance.hand_back, stance.fetching) == (False, "owner", True, True)
    assert machine.lasting(600).paused_by == "owner"
    assert machine.owner(False).working


@pytest.mark.parametrize(
    ("reason", "policy", "bad"),
    [
        ("busy-cpu", Policy(cpu_percent=50), {"cpu_others": 60.0}),
        ("busy-gpu", Policy(gpu_percent=20), {"gpu_others": 20.0}),
        ("memory", Policy(min_free_ram=GIB), {"free_ram": GIB - 1}),
    ],
)
def test_a_measured_reason_must_last_before_it_counts_and_stay_away_before_it_ends(reason, policy, bad):
    machine = Machine(policy)
    assert machine.lasting(ENTER_SECONDS - 5, **bad).working
    assert machine.lasting(10).working  # it was noise
    assert machine.lasting(ENTER_SECONDS, **bad).paused_by == reason
    assert machine.lasting(LEAVE_SECONDS - 5).paused_by == reason
    assert machine.sees(**bad).paused_by == reason  # back: the time counts anew
    machine.after(5.0)
    assert machine.lasting(LEAVE_SECONDS - 5).paused_by == reason
    assert machine.lasting(5).working


def test_a_load_that_stays_at_its_limit_does_not_flip_the_machine():
    machine = Machine(Policy(cpu_percent=40))
    assert machine.lasting(15, cpu_others=41.0).paused_by == "busy-cpu"
    assert machine.lasting(300, cpu_others=39.0).paused_by == "busy-cpu"
    assert machine.lasting(LEAVE_SECONDS, cpu_others=29.0).working
    assert machine.lasting(300, cpu_others=39.0).working


def test_a_limit_of_0_is_off():
    machine = Machine(Policy(pause_on_battery=False))
    stance = machine.lasting(60, cpu_others=100.0, gpu_others=100.0, on_battery=True, free_ram=0, free_disk=0)
    assert stance.working
    assert stance.fetching


def test_on_battery_work_stops_at_once_and_starts_soon_after_the_plug_is_back():
    machine = Machine()
    assert machine.sees(on_battery=True).paused_by == "battery"
    assert machine.sees(on_battery=False).paused_by == "battery"
    assert machine.after(POWER_SECONDS).working


def test_outside_the_hours_a_lease_in_hand_ends_in_its_own_time_and_the_owner_sees_until_when():
    machine = Machine(Policy(hours=parse_hours(["13:00-14:00", "Wed 01:00-02:00"])))
    stance = machine.after(0.0)
    assert (stance.paused_by, stance.until, stance.hand_back) == ("hours", "13:00", False)
    assert machine.presence.next_deadline() == machine.now + 3600
    assert machine.after(3600).working
    assert machine.after(3600).until == "Tue 13:00"


def test_a_date_set_by_hand_counts_as_soon_as_it_is_seen():
    machine = Machine(Policy(hours=parse_hours(["13:00-14:00"])))
    assert not machine.after(0.0).working
    machine.local += timedelta(days=30, hours=1, minutes=30)
    assert machine.after(1.0).working


def test_a_disk_short_of_room_stops_fetching_and_nothing_else():
    machine = Machine(Policy(min_free_disk=4 * GIB))
    stance = machine.sees(free_disk=4 * GIB - 1)
    assert (stance.working, stance.paused_by, stance.fetching, stance.hand_back) == (True, "disk", False, False)
    assert "4.0 GiB are to stay free" in stance.detail
    assert not machine.lasting(60, free_disk=4 * GIB).fetching  # at the floor: the next segment would break it again
    machine.sees(free_disk=6 * GIB)
    assert machine.after(ROOM_SECONDS).fetching


def test_a_full_disk_stops_fetching_also_while_the_owner_has_paused():
    machine = Machine(Policy(min_free_disk=GIB))
    machine.owner(True)
    assert not machine.sees(free_disk=0).fetching


def test_memory_goes_back_at_once_where_it_is_what_is_needed_and_otherwise_when_a_pause_lasts():
    machine = Machine(Policy(gpu_percent=10, unload_seconds=600))
    assert machine.lasting(15, gpu_others=50.0).unload
    assert not machine.lasting(LEAVE_SECONDS).unload
    assert not machine.owner(True).unload
    assert machine.presence.next_deadline() == machine.now + 600
    assert not machine.after(599).unload
    assert machine.after(1).unload
    assert not machine.owner(False).unload
    assert not machine.owner(True).unload  # a new pause


def test_the_first_reason_that_applies_is_told_and_all_must_end():
    machine = Machine(Policy(cpu_percent=50, hours=parse_hours(["12:00-13:00"])))
    machine.lasting(20, cpu_others=90.0)
    assert machine.owner(True).paused_by == "owner"
    assert machine.owner(False).paused_by == "busy-cpu"
    machine.lasting(LEAVE_SECONDS)
    machine.sees(on_battery=True)
    assert machine.after(3600).paused_by == "hours"


class Anything(RuleBasedStateMachine):
    """Whatever is measured and said, in any order, at any pace."""

    policy = Policy(
        hours=parse_hours(["06:00-20:00"]), cpu_percent=50, min_free_ram=GIB, min_free_disk=GIB, unload_seconds=90
    )

    def __init__(self):
        super().__init__()
        self.machine = Machine(self.policy)
        self.paused = False
        self.stance = self.machine.after(0.0)
        self.good_since = self.bad_since = math.inf

    @rule(
        cpu=st.sampled_from([None, 0.0, 30.0, 45.0, 55.0, 100.0]),
        battery=st.sampled_from([None, False, False, True]),
        ram=st.sampled_from([None, 0, 2 * GIB]),
        disk=st.sampled_from([None, 0, 2 * GIB]),
    )
    def measure(self, cpu, battery, ram, disk):
        self.stance = self.machine.sees(cpu_others=cpu, on_battery=battery, free_ram=ram, free_disk=disk)
        good = (cpu or 0.0) < 37.5 and not battery and ram != 0 and disk != 0
        self.good_since = min(self.good_since, self.machine.now) if good else math.inf
        bad = cpu in (55.0, 100.0)
        self.bad_since = min(self.bad_since, self.machine.now) if bad else math.inf

    @rule(paused=st.booleans())
    def say(self, paused):
        self.paused = paused
        self.stance = self.machine.owner(paused)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 5.0, 30.0, 60.0, 3600.0]))
    def wait(self, seconds):
        self.stance = self.machine.after(seconds)

    @invariant()
    def a_paused_machine_never_works(self):
        if self.paused or not 6 <= self.machine.local.hour < 20:
            assert not self.stance.working
        if self.stance.working:
            assert not self.stance.hand_back
            assert not self.stance.unload

    @invariant()
    def a_reason_that_lasts_pauses(self):
        if self.machine.now >= self.bad_since + ENTER_SECONDS:
            assert not self.stance.working

    @invariant()
    def a_pause_ends_when_its_reasons_have_stayed_away(self):
        good = self.machine.now >= self.good_since + max(LEAVE_SECONDS, POWER_SECONDS, ROOM_SECONDS)
        if good and not self.paused and 6 <= self.machine.local.hour < 20:
            assert self.stance.working
            assert self.stance.fetching

    @invariant()
    def nothing_changes_before_the_deadline_it_names(self):
        ahead = self.machine.presence.next_deadline() - self.machine.now
        assert ahead > 0
        if 1e-3 < ahead < 1e6:
            later = timedelta(seconds=ahead - 1e-3)
            again = self.machine.presence.expire(now=self.machine.now + ahead - 1e-3, local=self.machine.local + later)
            assert (again.paused_by, again.unload, again.fetching) == (
                self.stance.paused_by,
                self.stance.unload,
                self.stance.fetching,
            )


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
