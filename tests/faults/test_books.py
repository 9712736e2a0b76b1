"""The crash benchmark finds what it looks for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aurora_p2p.testing.faults import POINTS
from benchmarks.crash_books import Books, LogReader
from benchmarks.crash_cases import draw, faults
from benchmarks.crash_run import participants
from benchmarks.fleet import WrongWeights, check_weights
from benchmarks.fleet_model import PERIOD, SPECS, digest_at, weights_at
from benchmarks.fleet_trainer import GROUP, PROMPTS

SLOTS = [(prompt, sample) for prompt in range(PROMPTS) for sample in range(GROUP)]


def taken(step, node="A", without=(), lag=1, **others):
    """A step whose samples are all of one node, except for those named "prompt_sample"."""
    other = {tuple(map(int, name.strip("s").split("_"))): peer for name, peer in others.items()}
    samples = [[*slot, other.get(slot, node)] for slot in SLOTS if slot not in without]
    return {"event": "taken", "step": step, "samples": samples, "min_lag": lag, "max_lag": lag}


def receipts(step, *slots):
    return {"event": "receipts", "step": step, "accepted": [list(slot) for slot in slots], "refused": {}}


def test_samples_that_were_acknowledged_and_trained_on_leave_the_books_clean():
    books = Books()
    books.receipt("A", receipts(4, (0, 0), (0, 1)))
    books.taken(taken(4, s1_0="B"))
    books.receipt("B", receipts(4, (1, 0)))  # the node's log is read after the step
    books.receipt("B", receipts(5, (1, 0)))  # of a step that is not taken yet
    books.taken(taken(4, s1_0="B"))  # by a trainer that started again
    assert (books.lost, books.doubled, books.stale, books.receipts) == ([], [], [], 4)


@pytest.mark.parametrize("log_first", [True, False])
def test_an_acknowledged_sample_that_is_not_trained_on_is_lost(log_first):
    books = Books()
    if log_first:
        books.receipt("A", receipts(4, (0, 3)))
    books.taken(taken(4, s0_3="B"))
    if not log_first:
        books.receipt("A", receipts(4, (0, 3)))
    assert len(books.lost) == 1
    assert "acknowledged to A, trained on B" in books.lost[0]


def test_a_missing_sample_and_a_step_that_changed_are_lost_samples():
    books = Books()
    books.taken(taken(4, without=[(0, 0)]))
    assert books.lost == [f"step 4 holds {PROMPTS * GROUP - 1} of {PROMPTS * GROUP} samples"]
    books.taken(taken(5))
    books.taken(taken(5, s0_0="B"))
    assert books.lost[1:] == ["step 5 was taken twice and was not the same"]


def test_one_sample_for_two_nodes_or_twice_in_a_step_is_doubled():
    books = Books()
    books.receipt("A", receipts(4, (0, 0)))
    books.receipt("B", receipts(4, (0, 0)))
    event = taken(5)
    books.taken({**event, "samples": [*event["samples"], event["samples"][0]]})
    assert len(books.doubled) == 2


@pytest.mark.parametrize("lag", [-1, 2])
def test_a_lag_outside_the_window_is_stale(lag):
    books = Books()
    books.taken(taken(4, lag=lag))
    assert len(books.stale) == 1


def test_a_log_is_read_once_across_its_rotation_and_past_a_line_that_a_kill_cut_off(tmp_path):
    path = tmp_path / "node.log"
    log = LogReader(path)
    assert list(log.read()) == []
    path.write_text('{"n": 1}\n{"n": 2}\n')
    assert [line["n"] for line in log.read()] == [1, 2]
    with path.open("a") as file:
        file.write('{"n": 3}\n')
    path.rename(tmp_path / "node.log.1")
    path.write_text('{"n": 4}\n{"cut o')
    assert [line["n"] for line in log.read()] == [3, 4]
    with path.open("a") as file:
        file.write('ff\n{"n": 5}\n')
    assert [line["n"] for line in log.read()] == [5]


def test_a_node_that_serves_other_weights_than_its_version_is_found():
    check_weights("node0", {"version": 3, "digest": digest_at(3)})
    check_weights("node0", {"version": -1, "digest": ""})
    with pytest.raises(WrongWeights, match="node0"):
        check_weights("node0", {"version": 3, "digest": digest_at(4)})


def test_one_element_in_a_hundred_changes_from_a_version_to_the_next_and_all_stay_finite():
    for version in (0, 1_000, 1_000_000):
        old, new = weights_at(version), weights_at(version + 1)
        changed = sum(int((old[spec.name] != new[spec.name]).sum()) for spec in SPECS)
        assert changed * PERIOD == pytest.approx(sum(spec.elements for spec in SPECS), rel=0.2)
        assert not any(np.any((bits & 0x7F80) == 0x7F80) for bits in new.values())


def test_the_cases_cover_every_point_and_are_the_same_for_the_same_seed():
    cases = draw(len(faults()), seed=5, nodes=3)
    assert len({case.fault.name for case in cases}) == len(faults())
    assert [case.number for case in cases] == list(range(len(cases)))
    again = draw(len(faults()), seed=5, nodes=3)
    assert [(c.program, c.hit, c.fault.name) for c in again] == [(c.program, c.hit, c.fault.name) for c in cases]
    reached = {getattr(rule, "at", "") for case in cases for _, rule in participants(case)}
    of_commands = {name for name in POINTS if name.startswith("files.")}  # `aurora-host delta`: no part of a fleet
    assert reached - {""} == POINTS.keys() - of_commands


def test_a_plan_of_all_cases_fits_into_an_environment():
    from aurora_p2p.local.faults import MAX_PLAN
    from aurora_p2p.testing.faults import Faults
    from benchmarks.crash_run import AHEAD_CASES

    rules = [rule for case in draw(3000, seed=1, nodes=1) for _, rule in participants(case)][:AHEAD_CASES]
    (text,) = Faults(tuple(rules)).environment().values()
    assert len(text) < MAX_PLAN
    assert json.loads(text)["rules"]
