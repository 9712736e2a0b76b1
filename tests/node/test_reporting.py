"""A node's reports to its host: what they say, and when they are sent."""

import trio
import trio.testing

from aurora_node import reporting
from aurora_node.reporting import (
    DISTANCE_SECONDS,
    LOOK_SECONDS,
    REPEAT_SECONDS,
    STATE_LETTERS,
    Reports,
    distances_of,
    keep_measuring,
    keep_reporting,
    progress_of,
)
from aurora_node.weights import Weights
from aurora_node.work import WorkFigures
from aurora_p2p.artifact.store import ArtifactStore
from aurora_p2p.swarm import events as ev
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import Distance, Distances, Progress, Request
from aurora_p2p.wire.limits import MAX_DISTANCES, MAX_RTT_MS
from tests.artifact.conftest import Publisher
from tests.node.parts import driver_of

DONE = Progress(-1, 0, 0, 3, 3, "idle")


def test_a_report_is_due_when_it_changes_and_again_after_a_while():
    reports = Reports()
    assert reports.due(DONE, 100.0)
    reports.sent(DONE, 100.0, taken=True)
    assert not reports.due(DONE, 100.0 + REPEAT_SECONDS - 0.1)
    assert reports.due(DONE, 100.0 + REPEAT_SECONDS)
    assert reports.due(Progress(4, 1, 9, 3, 3, "idle"), 100.5)


def test_a_report_that_was_not_taken_is_due_again_at_the_next_look():
    reports = Reports()
    reports.sent(DONE, 100.0, taken=False)
    assert reports.due(DONE, 100.0 + LOOK_SECONDS)


def run_for(seconds, look, send, monkeypatch):
    clock = trio.testing.MockClock(autojump_threshold=0)
    monkeypatch.setattr(reporting, "boottime", clock.current_time)

    async def main():
        with trio.move_on_after(seconds):
            await keep_reporting(look, send)

    trio.run(main, clock=clock)


def test_what_changes_all_the_time_is_reported_once_a_second(monkeypatch):
    sent = []

    async def send(progress):
        sent.append(progress)
        return True

    states = iter(range(10**6))
    run_for(10.5, lambda: Progress(5, next(states), 10**6, 4, 4, "fetching"), send, monkeypatch)
    assert len(sent) == 11


def test_what_does_not_change_is_repeated_and_a_host_that_is_gone_is_asked_on(monkeypatch):
    sent = []

    async def send(progress):
        sent.append(progress)
        return len(sent) > 3

    run_for(3 * LOOK_SECONDS + 2 * REPEAT_SECONDS + 0.5, lambda: DONE, send, monkeypatch)
    assert sent == [DONE] * (3 + 1 + 2)


def test_a_node_says_what_it_fetches_and_nothing_of_what_is_complete(tmp_path):
    one = Publisher().publish(7, bytes(700), kind="snapshot")
    with ArtifactStore(tmp_path / "store", 1 << 30) as store:
        weights, driver, figures = Weights(store, None, 16), driver_of(store), WorkFigures()
        assert progress_of(weights, figures, driver) == Progress(-1, 0, 0, -1, -1, "starting")
        weights.restored(one.manifest, complete=False)
        driver._apply(ev.Restored(one.manifest, {0}))
        total = one.manifest.final.segments
        assert progress_of(weights, figures, driver) == Progress(7, 1, total, -1, -1, "starting")
        weights.problem = "no room " * 100
        assert progress_of(weights, figures, driver).state == ("no room " * 100)[:STATE_LETTERS]
        weights.restored(one.manifest, complete=True)
        assert progress_of(weights, figures, driver).fetching == -1


def test_every_report_fits_the_wire(tmp_path):
    with ArtifactStore(tmp_path / "store", 1 << 30) as store:
        figures = WorkFigures(state="\u6f22" * 900)
        progress = progress_of(Weights(store, None, 16), figures, driver_of(store))
        assert decode(encode(progress), Request) == progress


def peer(number):
    return f"{number:03}".rjust(52, "p")


def test_the_nearest_links_are_reported_in_whole_milliseconds_and_the_hosts_are_not():
    rtts = {peer(2): 0.0704, peer(1): 0.0004, peer(3): 3600.0, peer(4): 0.0}
    assert distances_of(rtts, {peer(4)}) == Distances(
        (Distance(peer(1), 0), Distance(peer(2), 70), Distance(peer(3), MAX_RTT_MS))
    )


def test_distances_to_any_number_of_links_fit_the_wire():
    distances = distances_of({peer(number): number / 1000 for number in range(256)}, ())
    assert [distance.rtt_ms for distance in distances.peers] == list(range(MAX_DISTANCES))
    assert decode(encode(distances), Request) == distances


def test_distances_are_reported_once_there_are_any_and_again_and_again():
    sent = []

    async def send(distances):
        sent.append((trio.current_time() - start, distances))
        return False

    start = 0.0
    looks = iter([Distances(()), *[Distances((Distance(peer(1), 5),))] * 3])

    async def main():
        nonlocal start
        start = trio.current_time()
        with trio.move_on_after(4.5 * DISTANCE_SECONDS):
            await keep_measuring(lambda: next(looks), send)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [at for at, _ in sent] == [2 * DISTANCE_SECONDS, 3 * DISTANCE_SECONDS, 4 * DISTANCE_SECONDS]
