"""Why a run waits: one sentence for each cause, the one that explains most first."""

import pytest

from aurora_p2p.host.why import MAX_SENTENCE, MAX_TOLD, why, why_step
from aurora_p2p.wire.control import Reason
from tests.host.screens import (
    ALICE,
    BOB,
    CAROL,
    HOSTILE,
    STATES,
    behind,
    disk_full,
    generating,
    hostile,
    node,
    paused,
    publishing,
    starting,
    step,
    without_trainer,
)


def test_a_new_swarm_says_what_to_publish_and_how_to_join_with_the_whole_ticket():
    status = starting() | {"ticket": "aurora1" + "q" * 900}
    first, second = why(status)
    assert first.startswith("nothing is published yet and no trainer is connected: name a checkpoint in run.toml")
    assert second.endswith(f"type aurora-node join {status['ticket']}")


def test_a_step_names_its_missing_samples_and_the_nodes_that_are_behind_with_what_each_does():
    assert why(behind())[0] == (
        "step 41 waits for 12 of 64 samples: 8 leased to 2 nodes (next deadline in 6 s), 4 open; "
        "2 nodes are still at version 39: ...licealic fetches version 41 (120 of 302 segments), "
        "...bBobbobb has not been heard of for 40 s; see aurora-host status --json"
    )


@pytest.mark.parametrize(
    ("late", "sentence"),
    [
        (node(ALICE, version=39, fetching=41, have=7, total=0), "...licealic fetches version 41 (7 segments)"),
        (node(ALICE, version=39, staged=41), "...licealic has staged version 41 and takes it after its lease"),
        (node(ALICE, version=39, staged=39, state="idle: no work"), "...licealic says: idle: no work"),
        (node(ALICE, version=39, progress=None), "...licealic has not reported what it does"),
        (node(ALICE, version=-1, staged=-1, state=""), "1 node is still at no version: ...licealic says: nothing"),
    ],
)
def test_a_node_that_is_behind_says_what_it_does_about_it(late, sentence):
    assert sentence in why(behind() | {"nodes": [late, node(CAROL)]})[0]


def test_nodes_that_take_no_work_though_they_could_are_named_with_what_they_say():
    asleep = node(BOB, state="paused: paused by the owner; `aurora-node resume` ends it") | {"leased": 0}
    hung = node(CAROL) | {"leased": 0}
    hung["progress"] = hung["progress"] | {"age_seconds": 45.0}
    told = why(behind() | {"nodes": [node(ALICE) | {"leased": 8}, asleep, hung]})
    assert told[1] == (
        "2 nodes take no work: ...bBobbobb says: paused by the owner; `aurora-node resume` ends it, "
        "...arolcaro has not been heard of for 45 s"
    )


def test_nobody_is_blamed_for_resting_while_no_sample_is_open():
    asleep = node(BOB, state="paused: outside working hours") | {"leased": 0}
    status = behind() | {"nodes": [asleep]}
    status["work"] = status["work"] | {"steps": [one | {"open": 0} for one in status["work"]["steps"]]}
    assert not any("take" in sentence for sentence in why(status))


def test_many_nodes_behind_are_named_up_to_four_and_counted():
    nodes = [node(f"12D3KooWnode{index:08d}", version=30 + index) for index in range(6)]
    told = why(behind() | {"nodes": nodes})[0]
    assert "6 nodes are still at versions 30 to 35" in told
    assert "and 2 more; see aurora-host status --json" in told
    assert len(told) <= MAX_SENTENCE + len(behind()["ticket"])


def test_nodes_that_may_work_on_the_step_with_an_older_version_are_not_blamed():
    status = behind() | {"nodes": [node(ALICE, version=40), node(BOB)]}
    assert "still at" not in why(status)[0]


def test_later_steps_are_named_after_the_first():
    assert why(generating())[1] == "then step 42 (0 of 64 admitted)"


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (disk_full, "the disk is full: ledger.sqlite: database or disk is full: nothing is granted or acknowledged"),
        (paused, "paused by the owner: no new leases are granted; type `aurora-host resume` to go on"),
        (lambda: generating() | {"draining": True}, "stopping: no new leases are granted, 3 live ones are waited for"),
        (lambda: generating() | {"equivocation": True}, "another process publishes with this swarm's key"),
        (publishing, "version 42 is being published: 5.0 MB so far"),
        (
            without_trainer,
            "no trainer is connected; last published version 41 (5 min 12 s ago); start it: it attaches",
        ),
        (
            lambda: without_trainer() | {"head_age_seconds": None},
            "no trainer is connected; last published version 41 (be",
        ),
        (lambda: generating() | {"nodes": []}, "no node has joined: on another machine, type aurora-node join aurora1"),
    ],
)
def test_what_explains_most_comes_first(state, sentence):
    assert why(state())[0].startswith(sentence)


def trained(**changes):
    """A trainer is connected and every sample is in."""
    status = without_trainer()
    status["trainer"] |= {"connections": 1} | changes
    return status | {"head_age_seconds": 9.0}


def test_when_all_work_is_done_the_trainer_is_waited_for():
    assert why(trained()) == ["all work is done: waiting for the trainer to submit step 41 (9 s ago)"]
    status = trained()
    status["work"]["steps"] = [step(41, 64, 0, 0)]
    assert why(status)[0].startswith("all samples of step 41 are in: the trainer is training, or has to take them")


def test_a_trainer_that_waits_is_named_with_its_time():
    assert "the trainer has waited for step 41 for 2 s" in why(generating())


def test_nodes_that_do_not_serve_the_newest_version_are_named_when_no_step_waits():
    status = trained()
    status["nodes"][0] = node(ALICE, version=40, fetching=41, have=10, total=302)
    told = why(status)
    assert "1 of 3 nodes does not serve version 41 yet: ...licealic fetches version 41 (10 of 302 segments)" in told


def refused(reason, count=900, **by):
    status = trained()
    status["work"]["refused"] = {reason: count}
    status["nodes"] = [node(ALICE, refused={reason: by.get("alice", 0)}), node(BOB, refused={reason: by.get("bob", 0)})]
    return status


def test_refusals_say_what_they_mean_and_who_sent_most_of_them():
    assert (
        "900 results were refused as lag: made with weights older than the step allows: nodes fall behind the trainer"
        " (mostly from ...licealic)" in why(refused("lag", alice=800, bob=100))
    )
    assert "mostly from" not in str(why(refused("lag", alice=450, bob=450)))
    assert why(refused("lag", count=1)) == why(trained() | {"nodes": refused("lag")["nodes"]})


SAID = {
    Reason.LAG,
    Reason.LEASE_EXPIRED,
    Reason.LEASE_SPENT,
    Reason.LEASE_UNKNOWN,
    Reason.FENCED,
    Reason.NOT_THE_LESSEE,
    Reason.WRONG_RUN,
    Reason.WRONG_MANIFEST,
    Reason.WRONG_DIGEST,
    Reason.NOT_IN_LEASE,
    Reason.BAD_TOKENS,
    Reason.BAD_LOGPROBS,
    Reason.BAD_FINISH,
    Reason.WRONG_SEED,
    Reason.DUPLICATE,
    Reason.BAD_SIGNATURE,
    Reason.MALFORMED,
    Reason.TOO_LATE,
}


@pytest.mark.parametrize("reason", sorted(SAID))
def test_every_reason_of_a_refused_result_has_a_meaning(reason):
    told = next(sentence for sentence in why(refused(reason.value)) if "refused as" in sentence)
    assert told.partition(": ")[2]


def test_a_fold_that_failed_is_told():
    failed = {"squashes": 0, "snapshots": 2, "making": None, "settled": 40, "failed": "the disk is full"}
    assert "the last squash or snapshot could not be made: the disk is full; it is tried again by itself" in why(
        paused() | {"folds": failed}
    )
    assert why(paused() | {"folds": failed | {"failed": ""}}) == why(paused())


def test_nodes_that_let_their_samples_expire_bans_and_restarts_are_told_last():
    assert why(paused())[-3:] == [
        "1 node let more samples expire than it sent: ...bBobbobb (900)",
        "1 peer is banned here: ...arolcaro for 52 s (segment 5 fails its hash)",
        "the bulk process was restarted once: see bulk.log",
    ]


def test_a_disk_that_is_running_out_of_room_is_named_before_it_is_full():
    status = trained() | {"disk": {"used": 63_990_000_000, "quota": 64_000_000_000, "free": 10**12}}
    assert why(status)[1] == (
        "room for artifacts is running out: 10 MB left, the newest took 12 MB; "
        "raise quota_gib in run.toml, or free space"
    )


def test_a_trainer_is_told_what_stops_the_step_it_waits_for_in_one_line():
    assert why_step(behind(), 41) == why(behind())[0]
    assert why_step(paused(), 41).startswith(
        "paused by the owner: no new leases are granted; type `aurora-host resume`"
    )
    assert why_step(generating() | {"nodes": []}, 42).startswith("no node has joined; step 42 waits for 64 of 64")
    assert why_step(generating(), 7) == ""
    assert why_step(starting() | {"ticket": "secret"}, 0) == "no node has joined"


def test_hostile_text_is_cut_and_cleaned():
    for status in (hostile(), hostile() | {"ledger": {"waits": HOSTILE}}):
        for sentence in [*why(status), why_step(status, 41)]:
            assert sentence.isprintable()
            assert len(sentence) <= max(MAX_SENTENCE + len(status["ticket"]), MAX_TOLD)
    assert len(why_step(hostile() | {"ledger": {"waits": HOSTILE}}, 41)) <= MAX_TOLD


def test_every_state_has_something_to_say():
    assert all(why(state()) for state in STATES)
    status = generating()
    status["work"]["steps"] = []
    status["trainer"] |= {"waits_for": None}
    status["pipeline"]["extract"] = {"version": 42, "bytes": 1, "bound": 2, "seconds": 0.1}
    assert why(status)[0].startswith("version 42 is being published")
