"""Samples of an engine, as the tests of every engine draw them."""

from __future__ import annotations

import threading


def draw_all(engine, lease, count=12, **options):
    sampling, samples, prompts = lease
    steps = list(engine.generate(sampling(**options), prompts, samples(count), threading.Event()))
    finished = {one.index: one for step in steps for one in step.finished}
    assert sorted(finished) == list(range(count))
    assert sum(step.tokens for step in steps) == sum(len(one.tokens) for one in finished.values())
    return finished
