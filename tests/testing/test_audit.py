"""The audit of acknowledged samples: it finds what was lost and what was admitted twice."""

from __future__ import annotations

import json
from pathlib import Path

import trio

from aurora_p2p.store.ledger import Ledger
from aurora_p2p.testing.audit import Accepted, accepted_in, audit, samples_in
from tests.store.test_ledger import NODE, admitted, prompts_of


def test_a_nodes_log_tells_what_was_accepted_through_rotation_and_a_torn_line(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    lines = [{"event": "joined"}, {"event": "receipts", "lease": "a", "step": 3, "accepted": [[0, 1]], "refused": {}}]
    (tmp_path / "node.log.1").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log.write_text(json.dumps({**lines[1], "lease": "b", "accepted": [[2, 0], [2, 1]]}) + '\n{"event": "rece')
    accepted = {(one.lease, one.sample) for one in accepted_in(log)}
    assert accepted == {("a", (3, 0, 1)), ("b", (3, 2, 0)), ("b", (3, 2, 1))}


def test_the_samples_of_a_ledger_are_read_while_its_host_has_it_open(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    trio.run(ledger.commit, [prompts_of(0, 1, 2), admitted(0, 0, 1)])
    assert samples_in(tmp_path / "ledger.sqlite") == {(0, 0, 1): NODE.peer}
    ledger.close()


def test_a_sample_that_was_accepted_and_is_not_there_is_lost() -> None:
    told = {"n": [Accepted("a", (1, 0, 0)), Accepted("a", (1, 0, 1))]}
    assert audit(told, {(1, 0, 0): "n"}).lost == ((1, 0, 1),)
    assert audit(told, {(1, 0, 0): "n", (1, 0, 1): "another"}).lost == ((1, 0, 1),)
    assert audit(told, {(1, 0, 0): "n", (1, 0, 1): "n"}).lost == ()
    assert audit(told, {(2, 0, 0): "n"}).lost == (), "step 1 is consumed and forgotten"


def test_a_sample_that_was_accepted_under_two_leases_is_doubled_and_a_repeated_receipt_is_not() -> None:
    again = [Accepted("a", (1, 0, 0)), Accepted("a", (1, 0, 0))]
    assert audit({"n": again}, {}).doubled == ()
    both = audit({"n": again, "m": [Accepted("b", (1, 0, 0))]}, {})
    assert (both.doubled, both.accepted) == (((1, 0, 0),), 1)
