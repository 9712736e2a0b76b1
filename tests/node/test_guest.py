"""The presence of a machine, kept up to date: measurements, both clocks, and the owner's word across restarts."""

from datetime import datetime, timedelta

import pytest
import trio
import trio.testing

from aurora_node import guest as module
from aurora_node.config import NodeConfig
from aurora_node.guest import MEASURE_SECONDS, Guest, policy_of
from aurora_node.presence import GIB, Measured, Policy
from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.local.output import Output


class World:
    """A guest whose measurements and clocks are set by hand; trio's clock skips what is only waited for."""

    def __init__(self, home, policy, monkeypatch):
        self.found, self.stances = Measured(), []
        self.noon = datetime(2026, 3, 2, 12, 0).astimezone()
        self.jump = timedelta()
        monkeypatch.setattr(module, "boottime", trio.current_time)
        monkeypatch.setattr(module, "wall", self._wall)
        self.output = Output(as_json=False)
        self.guest = Guest(home, policy, lambda: self.found, self.output)
        self.guest.follow(lambda stance: self.stances.append((stance.paused_by, round(trio.current_time()))))

    def _wall(self):
        return self.noon + timedelta(seconds=trio.current_time()) + self.jump


def keep(tmp_path, monkeypatch, use, policy=None):
    async def main():
        world = World(tmp_path, policy or Policy(), monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.guest.run)
            await use(world)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.005))


def test_whoever_follows_hears_what_holds_now_and_every_change(tmp_path, monkeypatch):
    async def use(world):
        await trio.sleep(100)
        world.found = Measured(on_battery=True)
        await trio.sleep(100)
        world.found = Measured(on_battery=False)
        await trio.sleep(100)
        assert [reason for reason, _ in world.stances] == ["", "battery", ""]
        assert world.stances[1][1] <= 100 + MEASURE_SECONDS
        assert world.output.tail(2) == ["the machine runs on its battery (pause_on_battery)", "working again"]

    keep(tmp_path, monkeypatch, use)


def test_the_owners_pause_outlives_the_daemon_and_a_resume_ends_it(tmp_path, monkeypatch):
    async def pause(world):
        answer = await world.guest.pause({})
        assert (answer["working"], answer["paused_by"]) == (False, "owner")
        assert "also after a restart" in answer["text"]

    async def resume(world):
        assert world.stances == [("owner", 0)]
        answer = await world.guest.resume({})
        assert (answer["working"], answer["text"]) == (True, "working")

    async def look(world):
        assert world.stances == [("", 0)]

    keep(tmp_path, monkeypatch, pause)
    keep(tmp_path, monkeypatch, resume)
    keep(tmp_path, monkeypatch, look)


def test_without_room_on_the_disk_a_pause_holds_until_the_restart_and_says_so(tmp_path, monkeypatch):
    def full(path, content):
        raise StoreError("cannot write paused: No space left on device")

    async def use(world):
        monkeypatch.setattr(module, "write_durably", full)
        answer = await world.guest.pause({})
        assert answer["text"].startswith("paused until the restart only: cannot write")
        assert not world.guest.stance.working

    keep(tmp_path, monkeypatch, use)


def test_a_resume_says_what_else_pauses(tmp_path, monkeypatch):
    async def use(world):
        world.found = Measured(on_battery=True)
        await trio.sleep(10)
        await world.guest.pause({})
        assert "battery" in (await world.guest.resume({}))["text"]

    keep(tmp_path, monkeypatch, use)


def test_the_hours_begin_and_end_on_time_and_a_date_moved_by_a_month_is_noticed_within_seconds(tmp_path, monkeypatch):
    async def use(world):
        await trio.sleep(150)
        assert world.stances == [("hours", 0), ("", 60), ("hours", 120)]
        world.jump = timedelta(days=30, minutes=-1)
        await trio.sleep(MEASURE_SECONDS)
        assert world.stances[-1][0] == ""

    hours = policy_of(NodeConfig(hours=("12:01-12:02",)), tmp_path).hours
    keep(tmp_path, monkeypatch, use, Policy(hours=hours))


def test_settings_become_a_policy_in_bytes_and_seconds(tmp_path):
    config = NodeConfig(
        pause_when_cpu_busy=30.0, pause_when_gpu_busy=5.0, min_free_ram_gib=0.5, unload_after_minutes=2.0
    )
    policy = policy_of(config, tmp_path)
    assert (policy.cpu_percent, policy.gpu_percent, policy.pause_on_battery) == (30.0, 5.0, True)
    assert (policy.min_free_ram, policy.unload_seconds) == (GIB // 2, 120.0)
    assert 0 < policy.min_free_disk <= GIB


def test_hours_that_cannot_be_read_are_refused_at_start(tmp_path):
    with pytest.raises(UsageError, match="no window of the week"):
        policy_of(NodeConfig(hours=("late",)), tmp_path)
