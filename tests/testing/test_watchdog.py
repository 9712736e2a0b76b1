"""The watchdog over statuses: who stands still for no reason is named, and nobody else."""

from __future__ import annotations

from typing import Any

from aurora_p2p.testing.watchdog import Watchdog

BOUND = 5.0


def artifact(version: int, have: int, segments: int = 8) -> dict[str, Any]:
    return {"artifact": f"a{version}", "version": version, "have": have, "segments": segments}


def node(peer: str, version: int, *artifacts: dict[str, Any], links: tuple[str, ...] = ("h",), **more: Any) -> dict:
    exchange = {
        "artifacts": list(artifacts),
        "received_bytes": sum(one["have"] for one in artifacts),
        "disk_paused": False,
        "peers": [{"peer": other, "linked": True} for other in links],
        **{key: more.pop(key) for key in ("disk_paused",) if key in more},
    }
    return {"peer": peer, "version": version, "newest": version, "commits": version, "exchange": exchange, **more}


def host(version: int, *artifacts: dict[str, Any]) -> dict[str, Any]:
    status = node("h", version, *artifacts, links=())
    del status["peer"]
    return {**status, "members": ["h"]}


def watched(*looks: tuple[dict | None, dict[str, dict | None]]) -> Watchdog:
    """One look every 2 s."""
    watchdog = Watchdog(BOUND)
    for number, (one, nodes) in enumerate(looks):
        watchdog.look(one, nodes, now=2.0 * number)
    return watchdog


HOST = host(2, artifact(2, 8))


def test_a_node_that_lacks_what_its_linked_host_has_and_does_not_move_is_a_stall() -> None:
    watchdog = watched(*[(HOST, {"n": node("n", 1, artifact(2, 3))})] * 4)
    (stall,) = watchdog.stalls
    assert (stall.name, stall.version, stall.artifact, stall.have, stall.holder) == ("n", 1, "a2", 3, "host")
    assert stall.seconds == watchdog.longest == 6.0


def test_a_node_that_moves_is_none_however_slowly() -> None:
    assert watched(*[(HOST, {"n": node("n", 1, artifact(2, have))}) for have in range(7)]).stalls == []


def test_a_node_without_a_link_to_a_holder_is_none() -> None:
    alone = node("n", 1, artifact(2, 3), links=())
    assert watched(*[(HOST, {"n": alone})] * 5).stalls == []


def test_a_holder_that_does_not_answer_holds_nothing_and_another_node_counts_as_well() -> None:
    lacking = node("n", 1, artifact(2, 3), links=("h", "m"))
    assert watched(*[(None, {"n": lacking})] * 5).stalls == []
    held = {"n": lacking, "m": node("m", 2, artifact(2, 8))}
    assert [stall.holder for stall in watched(*[(None, held)] * 4).stalls] == ["m"]


def test_time_in_which_a_node_does_not_answer_does_not_count() -> None:
    lacking = {"n": node("n", 1, artifact(2, 3))}
    looks = [(HOST, lacking), (HOST, lacking), (HOST, {"n": None}), (HOST, lacking), (HOST, lacking)]
    assert watched(*looks).stalls == []


def test_a_node_that_says_why_it_stands_is_excused() -> None:
    full = node("n", 1, artifact(2, 3), disk_paused=True)
    asleep = node("n", 1, artifact(2, 3), presence={"paused_by": "hours"})
    for status in (full, asleep):
        assert watched(*[(HOST, {"n": status})] * 5).stalls == []


def test_a_node_that_serves_the_newest_version_needs_nothing_older() -> None:
    done = node("n", 2, artifact(1, 0), artifact(2, 8))
    assert watched(*[(host(2, artifact(1, 8), artifact(2, 8)), {"n": done})] * 5).stalls == []
