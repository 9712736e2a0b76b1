"""The demo's figures, from step records and statuses made by hand: every quotient with a known answer."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.host.demo_report import Demo, PhaseFigures, Statuses, quantile, render_table, report_of


def node(*, digest="aa", origin=0, peers=0, sent=0, transfer=0.0, waited=0.0, pauses=(), audits=0, mismatches=0):
    return {
        "digest": digest,
        "digest_audits": audits,
        "digest_mismatches": mismatches,
        "transfer_seconds": transfer,
        "waited_seconds": waited,
        "pause_seconds": list(pauses),
        "exchange": {"segments": {"origin": origin, "peers": peers, "sent": sent}},
    }


def host(*, version=0, sent_bytes=0, admitted=(), refused=()):
    return {
        "version": version,
        "exchange": {"sent_bytes": sent_bytes},
        "work": {"nodes": [{"admitted": count} for count in admitted], "refused": dict(refused)},
    }


def record(*, tokens=100, size=1000, changed=1, elements=10, reward=0.5):
    return SimpleNamespace(
        tokens=tokens,
        publication=SimpleNamespace(bytes=size, changed=changed, elements=elements),
        report=SimpleNamespace(reward=reward),
    )


LEARN = PhaseFigures(
    records=[record(reward=0.25), record(size=3000, changed=5, reward=0.75)],
    seconds=4.0,
    before=Statuses(
        host(sent_bytes=500),
        [node(origin=1, peers=1, sent=1, transfer=1.0, pauses=[9.0]), node(waited=0.5, pauses=[9.0])],
    ),
    after=Statuses(
        host(sent_bytes=5500),
        [
            node(origin=11, peers=5, sent=7, transfer=6.0, waited=1.0, pauses=[9.0, 0.004, 0.001]),
            node(origin=4, peers=12, sent=9, transfer=5.0, waited=1.5, pauses=[9.0, 0.002]),
        ],
    ),
)
QUIET = Statuses(host(), [node(), node()])
SPARSE = PhaseFigures([record(size=50, changed=1, elements=100)], 1.0, QUIET, QUIET)
FULL = PhaseFigures([record(tokens=50, size=8000)], 2.0, QUIET, Statuses(host(sent_bytes=16_000), [node(), node()]))
FINAL = Statuses(
    host(version=14, admitted=(30, 12), refused={"lag": 2, "too_late": 1}),
    [node(audits=3), node(audits=4, mismatches=0)],
)


def demo(**changes):
    values = {
        "steps": 2, "nodes": 2, "lr": 1e-2, "seed": 0, "prompts": 4, "generation_seconds": 2.0,
        "cap_bytes_per_second": 2048.0, "full_bytes": 8000, "before": 0.2, "after": 0.6, "control_after": 0.21,
        "control_sd": 0.02, "learn": LEARN, "sparse": SPARSE, "full": FULL, "final": FINAL, "wall_seconds": 99.0,
    }  # fmt: skip
    return Demo(**{**values, **changes})


def test_every_figure_is_what_the_statuses_say():
    report = report_of(demo())
    assert report["versions"] == 15
    assert (report["digest_audits"], report["digest_mismatches"]) == (7, 0)
    assert (report["admitted"], report["refused"]) == (42, {"lag": 2, "too_late": 1})
    assert report["reward"] == [0.25, 0.75]
    assert report["heldout"] == {"before": 0.2, "after": 0.6, "control_after": 0.21, "control_sd": 0.02}
    assert report["changed_ratio"] == [0.1, 0.5]
    assert (report["delta_bytes"], report["full_bytes"]) == ([1000, 3000], 8000)
    assert report["cap_kib_per_second"] == 2.0
    assert report["sparse_phase"] == {"lr": 1e-6, "changed_ratio": [0.01], "delta_bytes": [50]}


def test_segments_and_copies_are_the_phases_own():
    report = report_of(demo())
    assert report["segments"] == {"origin": 14, "peers": 16, "served": [6, 9]}
    assert report["origin_copies"] == 5000 / 4000


def test_the_hidden_share_of_the_transfer_is_what_nobody_waited_for():
    assert report_of(demo())["hidden_transfer_ratio"] == pytest.approx(1 - 2.0 / 10.0)


def test_pauses_are_those_of_the_phase_in_milliseconds():
    assert LEARN.pauses_ms == [1.0, 2.0, 4.0]
    assert report_of(demo())["pause_ms"] == {"p50": 2.0, "p99": 4.0}


def test_speed_is_tokens_over_the_phases_seconds_and_the_baseline_has_its_own():
    report = report_of(demo())
    assert report["tokens_per_second"] == 50.0
    assert report["baseline_full"] == {"tokens_per_second": 25.0, "seconds": 2.0, "origin_copies": 2.0}
    assert report_of(demo(full=None))["baseline_full"] is None


def test_weights_that_differ_between_nodes_are_a_mismatch_although_each_audit_was_right():
    final = Statuses(FINAL.host, [node(digest="aa"), node(digest="bb", mismatches=1)])
    assert report_of(demo(final=final))["digest_mismatches"] == 2


def test_the_table_shows_the_gain_over_full_weights_and_a_dash_for_what_was_not_measured():
    table = render_table(report_of(demo()))
    assert "(deltas: 2.0x)" in table
    assert "0.25 -> 0.75" in table
    assert "1.25" in table
    still = PhaseFigures(LEARN.records, 4.0, LEARN.before, LEARN.before)
    table = render_table(report_of(demo(learn=still, full=None)))
    assert "-; -" in table
    assert "full-weight broadcast" not in table


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_the_smallest_value_with_that_share_at_or_below_it(values, share):
    values.sort()
    got = quantile(values, share)
    at_or_below = sum(value <= got for value in values) / len(values)
    below = sum(value < got for value in values) / len(values)
    assert below - 1e-9 < share <= at_or_below + 1e-9


def test_a_quantile_of_nothing_is_none():
    assert quantile([], 0.5) is None
