"""The physics of the simulated network: capacities, windows, order, cuts. Times are simulated seconds."""

from __future__ import annotations

import pytest

from aurora_p2p.testing.lanes import QUANTUM, Parcel, Pipe
from aurora_p2p.testing.timeline import BudgetError, Timeline
from aurora_p2p.testing.topology import INITIAL_WINDOW, MAX_WINDOW, NodeSpec, Topology, Window
from aurora_p2p.testing.wires import Server, Uplink

MB = 1_000_000
SEGMENT = 8 * QUANTUM


class Log:
    """Ends of pipes that note what happens, and when."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.out: list[tuple[float, object]] = []
        self.arrived: list[tuple[float, object]] = []
        self.there = True

    def left(self, pipe: Pipe, token: object) -> None:
        self.out.append((self.timeline.now, token))

    def control_in(self, pipe: Pipe, content: object) -> bool:
        self.arrived.append((self.timeline.now, content))
        return self.there

    def parcel_in(self, pipe: Pipe, parcel: Parcel) -> bool:
        return self.control_in(pipe, parcel.content)

    def is_there(self, pipe: Pipe) -> bool:
        return self.there

    @property
    def what(self) -> list[object]:
        return [content for _, content in self.arrived]


class Lab:
    """Pipes with windows at their limit unless asked otherwise."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.log = Log(self.timeline)

    def pipe(
        self,
        uplink: Uplink,
        *servers: Server,
        delay: float = 0.01,
        lanes: int = 1,
        window: float = MAX_WINDOW,
        warm: bool = True,
    ) -> Pipe:
        return Pipe(
            self.timeline,
            self.log,
            (None, None),
            (uplink, delay, servers),
            lanes,
            Window(float(INITIAL_WINDOW if not warm else window), float(window)),
        )

    def up(self, rate: float = MB) -> Uplink:
        return Uplink(self.timeline, rate)

    def server(self, rate: float = 100 * MB) -> Server:
        return Server(self.timeline, rate)

    def run(self) -> list[object]:
        self.timeline.run(1e6)
        return self.log.what


def segment(name: str, size: int = SEGMENT) -> Parcel:
    return Parcel(name, size, name)


def test_a_segment_takes_its_bytes_over_the_rate_and_one_delay() -> None:
    lab = Lab()
    lab.pipe(lab.up(), lab.server(1e12)).send(segment("a"))
    lab.run()
    assert lab.log.arrived[0][0] == pytest.approx(SEGMENT / MB + 0.01, rel=1e-3)
    assert lab.log.out[0][0] == pytest.approx(SEGMENT / MB)


def test_links_share_an_uplink_fairly_and_one_link_sends_in_order() -> None:
    lab = Lab()
    up = lab.up()
    a, b = lab.pipe(up, lab.server()), lab.pipe(up, lab.server())
    for name in ("a1", "a2"):
        a.send(segment(name))
    b.send(segment("b1"))
    assert lab.run() == ["a1", "b1", "a2"]
    at = {name: time for time, name in lab.log.out}
    assert at["b1"] == pytest.approx(2 * SEGMENT / MB)
    assert at["a2"] == pytest.approx(3 * SEGMENT / MB)


def test_senders_share_a_downlink_and_a_cut_fairly() -> None:
    lab = Lab()
    cut = lab.server(MB)
    pipes = [lab.pipe(lab.up(100 * MB), cut, lab.server()) for _ in range(4)]
    for number, pipe in enumerate(pipes):
        pipe.send(segment(f"{number}"))
    lab.run()
    times = [time for time, _ in lab.log.arrived]
    assert times[-1] == pytest.approx(4 * SEGMENT / MB + 0.01, rel=0.01)
    assert times[0] >= 0.85 * times[-1], "all at about the same time"


def test_a_control_frame_overtakes_segments_that_have_not_started_but_not_the_one_that_has() -> None:
    lab = Lab()
    pipe = lab.pipe(lab.up(), lab.server())
    pipe.send(segment("a"))
    pipe.send(segment("b"))
    pipe.send_control("frame", 100)
    assert lab.run() == ["a", "frame", "b"]


def test_with_several_lanes_control_frames_wait_for_no_segment_and_segments_travel_side_by_side() -> None:
    lab = Lab()
    pipe = lab.pipe(lab.up(), lab.server(), lanes=3)
    pipe.send(segment("a"))
    pipe.send(segment("b"))
    pipe.send_control("frame", 100)
    assert lab.run() == ["frame", "a", "b"]
    assert lab.log.out[1][0] - lab.log.out[0][0] == pytest.approx(QUANTUM / MB, rel=0.01)


def test_control_bytes_take_time_from_segments() -> None:
    lab = Lab()
    up = lab.up()
    pipe = lab.pipe(up, lab.server())
    pipe.send_control("frame", MB)
    pipe.send(segment("a"))
    lab.run()
    assert lab.log.out[0][0] == pytest.approx(1.0 + SEGMENT / MB)


def test_a_cold_window_doubles_each_round_trip() -> None:
    lab = Lab()
    pipe = lab.pipe(lab.up(1000 * MB), lab.server(1000 * MB), delay=0.05, warm=False)
    pipe.send(segment("a", 15 * INITIAL_WINDOW))
    lab.run()
    assert lab.log.arrived[0][0] == pytest.approx(3 * 0.1 + 0.05, rel=0.02), "1 + 2 + 4 + 8 windows"


def test_a_window_falls_back_after_a_pause_and_not_before() -> None:
    def second(pause: float) -> float:
        lab = Lab()
        pipe = lab.pipe(lab.up(1000 * MB), lab.server(1000 * MB), delay=0.05, warm=False)
        pipe.send(segment("a", 31 * INITIAL_WINDOW))
        lab.run()
        start = lab.timeline.now + pause
        lab.timeline.at(start, pipe.send, segment("b", 15 * INITIAL_WINDOW))
        lab.run()
        return lab.log.arrived[-1][0] - start

    assert second(0.0) < 0.11
    assert second(10.0) == pytest.approx(0.35, rel=0.02)


def test_segments_after_each_other_take_turns_on_the_lanes_of_a_link() -> None:
    def second(lanes: int) -> float:
        lab = Lab()
        pipe = lab.pipe(lab.up(1000 * MB), lab.server(1000 * MB), delay=0.05, lanes=lanes, warm=False)
        pipe.send(segment("a", 15 * INITIAL_WINDOW))
        lab.run()
        start = lab.timeline.now
        pipe.send(segment("b", 15 * INITIAL_WINDOW))
        lab.run()
        return lab.log.arrived[-1][0] - start

    assert second(2) < 0.11, "one lane for segments: its window has grown"
    assert second(3) == pytest.approx(0.35, rel=0.02), "two: the other one is cold"


def test_one_connection_is_bounded_by_its_window_over_the_round_trip() -> None:
    lab = Lab()
    pipe = lab.pipe(lab.up(1000 * MB), lab.server(1000 * MB), delay=0.05, window=MB)
    for number in range(20):
        pipe.send(segment(f"{number}", MB // 2))
    lab.run()
    assert lab.log.arrived[-1][0] == pytest.approx(10 * MB / (MB / 0.1), rel=0.1)


def test_loss_bounds_the_window_across_regions_only() -> None:
    topology = Topology(loss=1e-4)
    here, there = NodeSpec(), NodeSpec(region=1)
    assert topology.connections(here, here) == (1, Window(limit=MAX_WINDOW))
    assert topology.connections(here, there)[1].limit == pytest.approx(1.22 * 1448 * 100)


def test_striped_lanes_are_as_wide_as_all_of_them_and_leave_one_to_control_frames() -> None:
    topology = Topology(lanes=8, striped=True)
    assert topology.connections(NodeSpec(), NodeSpec(region=1)) == (2, Window(7 * INITIAL_WINDOW, 7 * MAX_WINDOW))
    assert topology.connections(NodeSpec(), NodeSpec()) == (1, Window())


def test_a_queue_at_the_receiver_does_not_starve_anybody_nor_leave_the_downlink_idle() -> None:
    lab = Lab()
    down = lab.server(MB)
    pipes = [lab.pipe(lab.up(10 * MB), down, warm=False, delay=0.001) for _ in range(10)]
    for pipe in pipes:
        for number in range(4):
            pipe.send(segment(f"{number}"))
    lab.run()
    assert lab.log.arrived[-1][0] == pytest.approx(40 * SEGMENT / MB, rel=0.05)


def test_nothing_leaves_a_closed_pipe_and_a_silent_receiver_stops_the_sender() -> None:
    lab = Lab()
    pipe = lab.pipe(lab.up(), lab.server(), warm=False)
    pipe.send(segment("a"))
    pipe.close()
    pipe.send(segment("b"))
    lab.run()
    assert "b" not in lab.log.what
    silent = Lab()
    silent.log.there = False
    pipe = silent.pipe(silent.up(), silent.server(), warm=False)
    pipe.send(segment("a"))
    silent.run()
    assert silent.log.out == [], "the window is full and nothing is acknowledged"


def test_what_was_cancelled_before_it_began_does_not_leave() -> None:
    lab = Lab()
    pipe = lab.pipe(lab.up(), lab.server())
    for name in ("a", "b", "c"):
        pipe.send(segment(name))
    pipe.cancel(lambda token: token in ("a", "b"))
    assert lab.run() == ["a", "c"]


def test_a_run_of_too_many_events_says_so() -> None:
    timeline = Timeline()

    def again() -> None:
        timeline.at(timeline.now, again)

    again()
    with pytest.raises(BudgetError):
        timeline.run(1.0, budget=100)
