"""How the codec's benchmark chooses among its rounds."""

from benchmarks.codec_speed import DISTURBED, LEAST_COUNTED, Gauges, Sample, best_of, between, chosen, middle_half

QUIET = Gauges(copy=0.010, arithmetic=0.001)
BUSY_CORE = Gauges(copy=0.010, arithmetic=0.001 * (DISTURBED + 0.01))
BUSY_MEMORY = Gauges(copy=0.010 * (DISTURBED + 0.01), arithmetic=0.001)


def test_a_ratio_beside_a_busy_core_or_a_busy_memory_does_not_count() -> None:
    quiet = [Sample(0.5, QUIET, QUIET)] * LEAST_COUNTED
    for busy in (BUSY_CORE, BUSY_MEMORY):
        found = [Sample(0.9, busy, QUIET), *quiet, Sample(0.1, QUIET, busy)]
        assert chosen(found, best_of(found)).ratios == [0.5] * LEAST_COUNTED


def test_with_too_few_quiet_rounds_the_least_disturbed_count_and_the_report_says_so() -> None:
    worse = Gauges(copy=0.020, arithmetic=0.002)
    found = [Sample(0.1, worse, worse)] * 9 + [Sample(0.4, BUSY_CORE, QUIET)] * 4 + [Sample(0.5, QUIET, QUIET)]
    kept = chosen(found, best_of(found))
    assert sorted(kept.ratios) == [0.4] * 4 + [0.5]
    assert kept.undisturbed == 1


def test_every_job_stands_between_two_copies_on_renewed_ground() -> None:
    done: list[str] = []
    jobs = {"a": lambda: done.append("a"), "b": lambda: done.append("b")}
    samples = between(lambda: done.append("copy"), lambda: done.append("renew"), jobs, 0)
    assert "".join(word[0] for word in done[-12:]).endswith("cracrbcr")
    assert {name: len(found) for name, found in samples.items()} == {"a": 5, "b": 5}
    assert all(one.after is later.before for one, later in zip(samples["a"], samples["b"], strict=True))


def test_the_middle_half_is_between_the_quartiles() -> None:
    assert middle_half([1, 2, 3, 4, 5, 6, 7]) == [2, 6]
