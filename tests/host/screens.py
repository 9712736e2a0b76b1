"""Statuses of a host in several states, and what its screen shows of each at several sizes.

`python -m tests.host.screens --write` writes tests/host/screens/*.txt anew; the tests compare with them.
"""

from __future__ import annotations

from aurora_p2p.host.screen import plain_line, render_screen
from aurora_p2p.host.why import why
from tests.gallery import Gallery

SIZES = ((40, 30), (80, 40), (120, 36), (200, 40))
ALICE = "12D3KooWAliceAliceAliceAliceAliceAliceAliceAlicealic"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobbobb"
CAROL = "12D3KooWCarolCarolCarolCarolCarolCarolCarolCarolcaro"
SWARM = "12D3KooWSwarmSwarmSwarmSwarmSwarmSwarmSwarmSwarmswrm"
HOSTILE = "12D3KooW\x1b[31mevil\x1b[0m\r\n\x07" + "\u202e" + "z" * 900


def node(peer, region=0, **changes):
    """One row of a status: a healthy node at version 41."""
    progress = {
        "fetching": -1,
        "have": 0,
        "total": 0,
        "staged": 41,
        "committed": 41,
        "state": "generating",
        "age_seconds": 0.8,
    }
    progress.update({key: changes.pop(key) for key in list(changes) if key in progress})
    return {
        "peer": peer,
        "region": region,
        "address": "127.0.0.1:4102",
        "control": "/ip4/127.0.0.1/tcp/4100",
        "seen_seconds": 0.8,
        "linked": True,
        "rtt_ms": None,
        "has_percent": 100,
        "version": 41,
        "active": True,
        "asked_seconds": 0.8,
        "tokens_per_second": 1_710.0,
        "leased": 8,
        "admitted": 2_340,
        "refused": {},
        "withheld": 0,
        "progress": progress,
    } | changes


def step(number, admitted, leased, waiting, why=""):
    """One row of the sample pool."""
    total = admitted + leased + waiting
    return {"step": number, "total": total, "open": waiting, "leased": leased, "admitted": admitted, "why": why}


def finished(number, reward, **changes):
    return {
        "step": number,
        "age_seconds": 40.0 - number,
        "seconds": 3.2,
        "wait_share": 0.1 + number % 5 / 20,
        "reward": reward,
        "tokens_per_second": 4_000.0 + 100 * (number % 7),
        "samples": 64,
        "waited_seconds": 0.6,
        "trained_seconds": 2.1,
        "published_seconds": 0.4,
    } | changes


def starting():
    """A new swarm: nothing is published, nobody has joined."""
    return {
        "swarm": SWARM,
        "run": "ab" * 16,
        "generation": 1,
        "roster_epoch": 1,
        "members": [],
        "version": -1,
        "seq": 0,
        "publications": 0,
        "publishing": False,
        "work": {"version": -1, "max_lag": 1, "nodes": [], "steps": [], "leases": [], "live_leases": 0, "refused": {}},
        "exchange": {
            "sent_bytes": 0,
            "received_bytes": 0,
            "segments": {"origin": 0, "peers": 0, "sent": 0},
            "published": {"sent_bytes": 0, "artifact_bytes": 0},
            "up_rate": 0.0,
            "down_rate": 0.0,
            "peers": [],
            "artifacts": [],
            "refused": {},
            "ban_reasons": {},
            "port": 4102,
            "up_kib": 0.0,
            "down_kib": 0.0,
            "disk_paused": False,
            "banned": {},
            "handshakes_refused": {},
            "bulk_pid": 4243,
            "restarts": 0,
        },
        "nodes": [],
        "pipeline": {
            "version": -1,
            "kind": "",
            "bytes": 0,
            "segments": 0,
            "sent_bytes": 0,
            "extract_seconds": None,
            "extract": None,
            "nodes": 0,
            "complete": 0,
            "spread_percent": 0,
            "staged": 0,
            "committed": 0,
        },
        "trainer": {
            "connections": 0,
            "waits_for": None,
            "waiting_seconds": 0.0,
            "wait_share": None,
            "last_step": None,
            "last_step_seconds": None,
        },
        "history": [],
        "head_age_seconds": None,
        "aborts": 0,
        "disk": {"used": 1_200_000_000, "quota": 64_000_000_000, "free": 210_000_000_000},
        "ledger": {
            "commits": 12,
            "seconds": 0.1,
            "last_seconds": 0.0034,
            "max_seconds": 0.02,
            "queued": 0,
            "waits": "",
        },
        "uptime_seconds": 2.1,
        "ticket": "aurora1" + "qz7k" * 40,
        "paused": False,
        "draining": False,
        "equivocation": False,
        "log": [f"swarm   {SWARM}"],
    }


def generating():
    """Three nodes in two regions work on step 41 while the trainer waits for it."""
    status = starting()
    status["exchange"] |= {
        "sent_bytes": 512_000_000,
        "up_rate": 3_100_000.0,
        "down_rate": 20_000.0,
        "published": {"sent_bytes": 450_000_000, "artifact_bytes": 400_000_000},
    }
    carol = node(CAROL, 1, tokens_per_second=950.0, refused={"lag": 3}, rtt_ms=71.6)
    nodes = [node(ALICE, rtt_ms=0.4), node(BOB, linked=False), carol]
    status["work"] |= {
        "version": 41,
        "nodes": nodes,
        "steps": [
            step(41, 52, 8, 4, "12 of 64 samples: 8 leased to 2 nodes (next deadline in 6 s), 4 open"),
            step(42, 0, 16, 48, "64 of 64 samples: 16 leased to 2 nodes (next deadline in 9 s), 48 open"),
        ],
        "live_leases": 3,
        "refused": {"lag": 3, "lease_expired": 1},
    }
    status["pipeline"] |= {
        "version": 41,
        "kind": "delta",
        "bytes": 12_400_000,
        "segments": 302,
        "sent_bytes": 14_000_000,
        "extract_seconds": 0.83,
        "nodes": 3,
        "complete": 3,
        "spread_percent": 100,
        "staged": 3,
        "committed": 3,
    }
    status["trainer"] |= {
        "connections": 1,
        "waits_for": 41,
        "waiting_seconds": 2.4,
        "wait_share": 0.21,
        "last_step": 40,
        "last_step_seconds": 3.0,
    }
    return status | {
        "members": ["12D3KooWHost", ALICE, BOB, CAROL],
        "version": 41,
        "seq": 43,
        "publications": 42,
        "nodes": nodes,
        "history": [finished(number, number / 50 - 0.1) for number in range(41)],
        "head_age_seconds": 3.1,
        "uptime_seconds": 812.0,
        "log": [f"version {version}: delta of 12,400,000 bytes in 302 segments" for version in range(30, 42)],
    }


def behind():
    """Step 41 cannot go on: two nodes are still at version 39."""
    status = generating()
    nodes = [
        node(ALICE, version=39, has_percent=39, fetching=41, have=120, total=302, staged=39, committed=39, leased=0),
        node(BOB, version=39, seen_seconds=40.0, active=False, leased=0, has_percent=None),
        node(CAROL, 1),
    ]
    status["work"]["steps"] = status["work"]["steps"][:1]
    status["pipeline"] |= {"complete": 1, "spread_percent": 46, "staged": 1, "committed": 1}
    return status | {"nodes": nodes}


def publishing():
    """The trainer is half-way through version 42; all samples are in."""
    status = generating()
    status["work"] |= {"steps": [step(41, 64, 0, 0)], "live_leases": 0, "refused": {}}
    status["trainer"] |= {"waits_for": None, "waiting_seconds": 0.0}
    status["pipeline"]["extract"] = {"version": 42, "bytes": 5_000_000, "bound": 20_000_000, "seconds": 0.4}
    return status | {"publishing": True}


def without_trainer():
    """Everything is done, and nobody submits the next step."""
    status = publishing()
    status["pipeline"]["extract"] = None
    status["work"]["steps"] = []
    status["trainer"]["connections"] = 0
    return status | {"publishing": False, "head_age_seconds": 312.0}


def paused():
    """The owner grants no leases; one node lets its samples expire, one peer is banned."""
    status = generating()
    status["nodes"][1] |= {"withheld": 900, "admitted": 12}
    status["exchange"] |= {"banned": {CAROL: 52.0}, "ban_reasons": {CAROL: "segment 5 fails its hash"}, "restarts": 1}
    return status | {"paused": True}


def disk_full():
    """The ledger waits for room, and so does everybody."""
    status = generating()
    status["ledger"] |= {"waits": "the disk is full: ledger.sqlite: database or disk is full", "queued": 31}
    return status | {"disk": {"used": 1_600_000_000, "quota": 64_000_000_000, "free": 0}}


def hostile():
    """Every text that comes from others is an attack on the terminal."""
    status = generating()
    bad = node(HOSTILE, address=HOSTILE, control=HOSTILE, state=HOSTILE, refused={HOSTILE: 9}, version=3, staged=3)
    status["work"]["refused"] = {HOSTILE: 900_000}
    status["exchange"] |= {"banned": {HOSTILE: 9.0}, "ban_reasons": {HOSTILE: HOSTILE}}
    return status | {"nodes": [bad], "log": [HOSTILE, "[bold]no markup[/bold] :smile:", "漢字" * 60]}


STATES = (starting, generating, behind, publishing, without_trainer, paused, disk_full, hostile)


GALLERY = Gallery("tests.host.screens", STATES, SIZES, render_screen, plain_line, why)

if __name__ == "__main__":
    GALLERY.write()
