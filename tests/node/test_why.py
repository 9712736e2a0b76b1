"""`aurora-node why`: for each reason to be idle, behind or not contributing, the sentence that names it and its end."""

import pytest

from aurora_node.screen import plain_line
from aurora_node.why import why
from aurora_p2p.wire.control import Reason
from tests.node.screens import ALICE, BOB, banned, disk_full, fetching, generating, hostile, idle, paused, starting


def said(status):
    return why(status)[0]


def test_a_node_that_works_says_so_first():
    assert said(generating()) == "working on step 42: 12 of 32 samples done, 8 s left"


@pytest.mark.parametrize(
    ("presence", "sentence"),
    [
        ({"paused_by": "owner"}, "paused by the owner: type `aurora-node resume` to work again"),
        ({"paused_by": "hours", "until": "22:00"}, "outside working hours until 22:00 (hours in node.toml)"),
        (
            {"paused_by": "busy-gpu", "detail": "others use 80 % of the GPU"},
            "paused (busy gpu): others use 80 % of the GPU",
        ),
        (
            {"paused_by": "owner", "unloaded": True},
            "paused by the owner: type `aurora-node resume` to work again; the engine has ended meanwhile, so its "
            "memory is free",
        ),
    ],
)
def test_a_pause_comes_first_with_what_ends_it(presence, sentence):
    status = idle() | {"presence": {"working": False, "detail": "", "until": "", "unloaded": False} | presence}
    assert said(status) == sentence


@pytest.mark.parametrize(
    "reason",
    [
        Reason.NO_WORK,
        Reason.VERSION_TOO_OLD,
        Reason.VERSION_UNKNOWN,
        Reason.WRONG_RUN,
        Reason.WRONG_DIGEST,
        Reason.WRONG_MANIFEST,
        Reason.QUARANTINED,
        Reason.DRAINING,
        Reason.PAUSED,
        Reason.DISK_FULL,
        Reason.NOT_A_MEMBER,
    ],
)
def test_each_refusal_of_a_lease_is_explained_and_not_only_named(reason):
    name = reason.value.replace("_", " ")
    assert said(idle() | {"state": f"idle: {name}"}) not in (f"idle: {name}", name)


def test_a_host_whose_disk_is_full_is_not_taken_for_a_paused_one():
    sentence = said(idle() | {"state": "idle: disk full"})
    assert "disk is full" in sentence
    assert "paused" not in sentence


def test_a_paused_node_does_not_blame_the_host():
    assert not any("the host has no work" in sentence for sentence in why(paused()))


def test_a_disk_below_its_floor_is_named_while_work_goes_on():
    presence = {"working": True, "paused_by": "disk", "detail": "0.4 GiB of disk are free, 1.0 GiB are to stay free"}
    sentences = why(generating() | {"presence": presence})
    assert sentences[0].startswith("short of disk: 0.4 GiB of disk are free")
    assert "min_free_disk_gib" in sentences[0]
    assert sentences[1].startswith("working on step 42")


def test_without_a_host_every_attempt_is_named():
    assert said(starting()) == (
        "no host has answered yet: tried /ip4/127.0.0.1/tcp/4100: connection refused; check that `aurora-host run` is "
        "up and that its address can be reached from here"
    )


def test_a_host_that_went_silent_is_named_with_the_age_of_its_last_word():
    status = generating() | {"fresh": False, "member": False, "tried": ["/ip4/10.0.0.1/tcp/1: timed out"]}
    status["head"] |= {"age_seconds": 130.0}
    assert said(status).startswith("no fresh HEAD for 2 min 10 s: the host does not answer; tried /ip4/10.0.0.1/tcp/1")


def test_before_the_first_host_answers_nothing_else_is_blamed():
    assert len(why(starting())) == 1


def test_a_host_that_stops_answering_is_named_at_once_and_instead_of_the_lease_it_did_not_give():
    away = {"member": False, "tried": ["/ip4/10.0.0.1/tcp/1: connection refused"]}
    sentences = why(idle() | away | {"state": "no lease: 12D3 broke off /aurora/lease/1: not connected"})
    assert sentences == [
        "the host does not answer; tried /ip4/10.0.0.1/tcp/1: connection refused; it is tried again by itself; check "
        "that `aurora-host run` is up and that its address can be reached from here"
    ]


def test_a_host_that_refuses_to_take_a_lost_member_back_is_not_said_to_be_silent():
    away = {"member": False, "tried": ["12D3Host: the host refuses: roster full: 1024"]}
    assert why(idle() | away) == [
        "not a member now: 12D3Host: the host refuses: roster full: 1024; it joins again by itself"
    ]


def test_a_late_answer_is_told_before_the_head_is_stale():
    status = generating()
    status["head"] |= {"age_seconds": 75.0}
    assert "has not answered the last question" in said(status)


def test_a_staged_version_waits_for_the_lease():
    assert said(generating() | {"newest": 42}) == (
        "version 42 is staged and waits for the lease to end (8 s at most, 12 of 32 samples done)"
    )


def test_a_transfer_tells_how_far_it_is_and_when_it_ends():
    assert said(fetching()) == "fetching version 42: 120 of 302 segments, 3 peers linked, 1.2 MB/s, about 9 s"


def test_a_transfer_that_stands_still_says_so_and_names_the_cap():
    status = fetching()
    status["exchange"] |= {"down_rate": 0.0, "down_kib": 50.0}
    assert said(status).endswith("and nothing arrives now (the download cap is 50 KiB/s)")


def test_a_node_without_links_is_told_what_to_check():
    status = fetching()
    status["exchange"] |= {"peers": [], "down_rate": 0.0}
    assert "no peer is linked (is port 40123 reachable" in said(status)


def test_an_artifact_that_has_arrived_is_being_decoded():
    status = idle() | {"version": 40, "newest": 40, "fetching": None}
    assert said(status) == "version 41 has arrived and is being decoded"


def test_a_version_that_nobody_offers_is_named():
    status = idle() | {"head": {"age_seconds": 1.0, "version": 50, "seq": 52, "generation": 1}}
    assert said(status).startswith("version 50 is the newest, version 41 is held, and no artifact that leads there")


def test_a_swarm_without_weights_is_not_the_nodes_fault():
    status = idle() | {"version": -1, "newest": -1, "state": "waiting for the first weights", "fresh": False}
    status["head"] |= {"age_seconds": None, "version": -1, "seq": 0}  # the host answered, without a HEAD
    status["exchange"]["artifacts"] = []
    assert said(status) == "nothing is published yet: work begins by itself with the trainer's first version"
    assert "HEAD" not in " ".join(why(status))
    assert plain_line(status).startswith("idle (waiting for the first weights)")
    assert why(status | {"member": False})[0].startswith("no fresh HEAD yet: the host does not answer")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("idle: no work", "the host has no work now"),
        ("idle: version too old", "newer weights only"),
        ("idle: draining", "the host is stopping"),
        ("idle: paused", "the host's operator has paused"),
        ("no lease: timed out", "the host gave no lease: timed out"),
        ("starting", "the engine is being started"),
        ("something new", "something new"),
    ],
)
def test_each_state_of_the_work_has_a_sentence(state, words):
    assert words in said(idle() | {"state": state})


def test_refusals_are_explained_the_most_frequent_first():
    status = generating() | {"refused": {"lag": 1, "wrong_digest": 9, "novel_reason": 3}}
    told = why(status)[1:]
    assert told[0].startswith("9 samples were refused as wrong digest: the weights named are not those")
    assert told[1] == "3 samples were refused as novel reason"
    assert told[2].startswith("1 sample was refused as lag: made with weights older")


REASONS = list(Reason)
OF_RESULTS = REASONS[REASONS.index(Reason.LEASE_UNKNOWN) : REASONS.index(Reason.TOO_LATE) + 1]


@pytest.mark.parametrize("reason", OF_RESULTS)
def test_every_reason_of_a_refused_result_has_a_meaning(reason):
    told = next(text for text in why(generating() | {"refused": {reason.value: 2}}) if "refused as" in text)
    assert told.partition(": ")[2]


def test_bans_restarts_and_wrong_digests_are_told_last():
    told = why(banned())
    assert told[-3].startswith(
        f"2 peers are banned here: ...{ALICE[-8:]} for 52 s (segment 5 fails its hash); ...{BOB[-8:]}"
    )
    assert told[-2] == "the engine was restarted once: what it said is in engine.log"
    assert "test this machine's memory" in told[-1]


def test_many_bans_are_counted_and_a_few_named():
    status = generating()
    status["exchange"] |= {"banned": {f"peer{index:04}": 10.0 for index in range(9)}, "ban_reasons": {}}
    assert why(status)[-1].endswith("and 5 more")


def test_a_full_disk_is_told_with_its_figures():
    told = why(disk_full())
    assert any("raise quota_gib" in sentence for sentence in told)
    assert any("390 MB are free, 1.6 GB of quota_gib's 2.0 GB are in use" in sentence for sentence in told)


def test_a_contradiction_stops_everything_and_says_what_ends_it():
    status = generating() | {"equivocation": True, "fresh": False}
    assert "signed two artifacts with one number" in said(status)
    assert "renewed the publisher's keys" in said(status)


def test_a_node_says_what_it_makes_for_newcomers_and_why_it_did_not():
    folds = {"folded": 1, "rebuilt": 0, "rebuilding": None, "rebuild_failed": ""}
    assert why(generating() | {"folds": folds}) == why(generating())
    working = {"version": 40, "have": 17, "segments": 100}
    assert why(generating() | {"folds": folds | {"rebuilding": working}})[-1] == (
        "rebuilding the snapshot of version 40 for newcomers, when nothing else runs: 17 of 100 segments"
    )
    assert why(generating() | {"folds": folds | {"rebuild_failed": "its pages did not come"}})[-1] == (
        "the last snapshot for newcomers was not rebuilt: its pages did not come; it is left to other members"
    )


def test_a_draining_node_says_so():
    assert said(generating() | {"draining": True}).startswith("draining: ")


def test_nothing_that_a_peer_says_steers_the_terminal():
    assert all(sentence.isprintable() and len(sentence) <= 400 for sentence in why(hostile()))


def test_a_status_of_an_older_daemon_is_understood():
    status = generating()
    for key in ("presence", "disk", "head", "fetching", "tried", "draining", "engine_restarts"):
        del status[key]
    assert said(status).startswith("working on step 42")
