"""What the log keeps: each lease, each result and each step, with the ids they are about."""

import json

import trio

from aurora_p2p.host.journal import Journal, notes_of
from aurora_p2p.host.steps import StepHistory
from aurora_p2p.lease.events import From
from aurora_p2p.local.log import EventLog, log_path
from aurora_p2p.local.output import Output
from aurora_p2p.swarm.events import Equivocated, Refused
from aurora_p2p.types import RunId, Seq, Step, Version
from aurora_p2p.wire.control import Lease, Reason, Release, Submit
from aurora_p2p.wire.trainer import Published, StepDone
from tests.host.world import NODES, SEGMENT, open_host
from tests.lease.world import World, finish

A, B = NODES[0], NODES[1]
RUN = RunId(b"r" * 16)


def open_world():
    world = World()
    world.publish(0)
    world.submit_prompts(0, 1, 4)
    return world


def test_a_lease_is_noted_with_who_got_what_for_how_long():
    world = open_world()
    lease = world.ask(A, samples=2)
    assert notes_of(None, world.effects) == [
        (
            "lease",
            {
                "step": 0,
                "lease": lease.lease.hex(),
                "peer": A.peer,
                "version": 0,
                "samples": 2,
                "seconds": lease.seconds,
            },
        )
    ]


def test_results_are_noted_by_lease_and_refusals_by_reason():
    world = open_world()
    one, two = world.ask(A, samples=1), world.ask(A, samples=1)
    results = (
        finish(A, one, one.samples[0]),
        finish(A, two, two.samples[0]),
        finish(A, two, two.samples[0], seed=1),
        finish(A, two, two.samples[0], sample=9),
    )
    event = From(A.peer, Submit(results, 0.0))
    world.handle(event)
    notes = notes_of(event, world.effects)
    assert notes == [
        ("results", {"step": 0, "lease": one.lease.hex(), "peer": A.peer, "admitted": 1}),
        ("results", {"step": 0, "lease": two.lease.hex(), "peer": A.peer, "admitted": 1}),
        ("refused", {"peer": A.peer, "reasons": {"duplicate": 1, "lease_spent": 1}}),
    ]


def test_an_ended_lease_and_a_complete_step_are_noted():
    world = open_world()
    lease = world.ask(A, samples=4)
    event = From(A.peer, Release(lease.lease, lease.fencing))
    world.handle(event)
    [(name, fields)] = notes_of(event, world.effects)
    assert (name, fields["lease"], fields["reason"]) == ("lease-ended", lease.lease.hex(), Reason.LEASE_SPENT)
    told = []
    for node in (A, B, A, B):
        lease = world.ask(node, samples=4)
        if isinstance(lease, Lease):
            event = From(node.peer, Submit(tuple(finish(node, lease, sample) for sample in lease.samples), 0.0))
            world.handle(event)
            told += notes_of(event, world.effects)
    assert world.pool.book.steps[0].complete
    assert told[-1] == ("complete", {"step": 0})


def test_submitted_prompts_are_noted_by_number_never_by_content():
    world = World()
    world.publish(0)
    world.submit_prompts(3, 5, 2)
    assert notes_of(None, world.effects) == [("prompts", {"step": 3, "prompts": 5, "group": 2})]


def test_the_log_of_a_host_has_the_run_in_every_note(tmp_path, capsys):
    with EventLog.open(log_path(tmp_path, "host")) as log:
        journal = Journal(Output(as_json=True, log=log), RUN)
        world = open_world()
        world.ask(A)
        journal.happened(None, world.effects)
        journal.step_done(StepHistory().done(StepDone(Step(7), 0.25, 1.0, 1.0, 1.0), now=1.0))
        journal.published(Published(Seq(9), Version(8), b"m" * 32, 3, 1_000), "delta")
        journal.notice(Refused(B.peer, "a bad frame"))
        journal.disk_changed("the disk is full")
        journal.disk_changed("")
        assert not journal.equivocated
        journal.notice(Equivocated(None))
        assert journal.equivocated
    logged = [json.loads(line) for line in log_path(tmp_path, "host").read_text().splitlines()]
    lines = [line for line in logged if line["event"] not in ("started", "ended")]
    assert [(line["event"], line.get("run")) for line in lines[:2]] == [("lease", RUN.hex()), ("step", RUN.hex())]
    assert (lines[1]["step"], lines[1]["reward"]) == (7, 0.25)
    assert [line["event"] for line in lines[2:]] == ["published", "refused", "disk-full", "disk-room", "equivocation"]
    printed = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["published", "refused", "disk-full", "disk-room", "equivocation"]


def test_a_pool_door_tells_what_happened_only_once_the_ledger_has_kept_it(tmp_path):
    async def main():
        async with open_host(tmp_path) as host:
            seen = []
            host.pool_door.happened = lambda event, effects: seen.append(
                [name for name, _ in notes_of(event, effects)] + [len(host.ledger.restore())]
            )
            await host.publish(0, bytes(SEGMENT))
            assert seen == [[1]]

    trio.run(main)
