"""A node's status: plain values out of the real parts, and a few lines for a person."""

import json

import pytest

from aurora_node.recent import KEPT_STRETCHES, STRETCH_SECONDS, RecentTokens
from aurora_node.status import MAP_CELLS, render_status
from aurora_node.work import WorkFigures
from aurora_p2p.artifact.manifest import Manifest
from aurora_p2p.wire.signed import seal
from tests.artifact.conftest import Publisher
from tests.node.parts import snapshot_of


def test_the_status_is_plain_json_and_reads_in_a_few_lines(tmp_path):
    work = WorkFigures(state="idle: no work", samples=4, admitted=3)
    work.refused["lag"] += 1
    status = snapshot_of(tmp_path, work=work, problem="version 3 cannot be used") | {"fresh": False}
    assert json.loads(json.dumps(status)) == status
    text = render_status(status)
    assert "version   none yet" in text
    assert "state     idle: no work  (no fresh HEAD)" in text
    assert "3 admitted of 4 generated" in text
    assert "speed     not measured yet" in text
    assert "refused   lag: 1" in text
    assert text.endswith("problem   version 3 cannot be used")


def test_a_measured_speed_and_the_pauses_of_commits_are_told(tmp_path):
    status = snapshot_of(tmp_path, work=WorkFigures(tokens_per_second=512.4), pauses=[0.1, 0.3]) | {"fresh": True}
    assert status["pause_p50_ms"] == pytest.approx(200.0)
    assert "speed     512 tokens/s" in render_status(status)
    assert "no fresh HEAD" not in render_status(status)


def test_a_lease_that_is_worked_on_has_its_time_left_and_one_that_has_ended_none(tmp_path):
    work = WorkFigures(lease_step=7, lease_size=4)
    assert snapshot_of(tmp_path, work=work)["lease"] == {"step": 7, "done": 0, "size": 4, "seconds_left": None}
    work.lease_ends = work.started + 3600
    assert 0 < snapshot_of(tmp_path, work=work)["lease"]["seconds_left"] <= 3600


def test_an_artifact_in_flight_is_told_by_its_segments(tmp_path):
    one = Publisher().publish(0, bytes(2560), kind="snapshot", seq=1)
    status = snapshot_of(tmp_path, fetching=one.manifest, have={0, 1, 2, 9}) | {"fresh": True}
    fetching = status["fetching"]
    assert (fetching["version"], fetching["have"], fetching["segments"]) == (0, 4, 10)
    assert fetching["coverage"] == [100, 100, 100, 0, 0, 0, 0, 0, 0, 100]
    assert "fetching  version 0: 4 of 10 segments" in render_status(status)


def test_what_a_status_tells_of_an_artifact_is_bounded_whatever_its_size(tmp_path):
    header = seal(Publisher().key, Publisher().header(0, kind="snapshot", seq=1, size_bound=256 << 20))
    manifest = Manifest(header, Publisher().key.peer)
    status = snapshot_of(tmp_path, fetching=manifest, have=range(0, manifest.max_segments, 2))
    assert len(status["fetching"]["coverage"]) == MAP_CELLS
    assert {*status["fetching"]["coverage"]} <= {49, 50}
    assert len(json.dumps(status)) < 20_000


def test_tokens_per_second_are_kept_for_whole_stretches_and_idle_ones_are_zero():
    recent = RecentTokens()
    assert recent.rates(5.0) == []
    recent.add(10, 100.0)
    recent.add(20, 101.9)
    recent.add(8, 106.5)
    assert recent.rates(101.9) == []
    assert recent.rates(106.6) == [15.0, 0.0, 0.0]
    assert recent.rates(108.1) == [15.0, 0.0, 0.0, 4.0]


def test_the_history_of_tokens_is_bounded():
    recent = RecentTokens()
    for second in range(3000):
        recent.add(2, float(second))
    assert recent.rates(3000.0) == [2.0] * KEPT_STRETCHES
    assert recent.rates(3000.0 + STRETCH_SECONDS * KEPT_STRETCHES) == [0.0] * KEPT_STRETCHES


def test_a_segment_map_is_never_longer_than_a_screen_is_wide():
    assert MAP_CELLS <= 200
