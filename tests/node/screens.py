"""Statuses of a node in several states, and what its screen shows of each at several sizes.

`python -m tests.node.screens --write` writes tests/node/screens/*.txt anew; the tests compare with them.
"""

from __future__ import annotations

from aurora_node.screen import plain_line, render_screen
from aurora_node.why import why
from tests.gallery import Gallery

SIZES = ((40, 24), (80, 30), (120, 30), (200, 36))
HOST = "12D3KooWHostHostHostHostHostHostHostHostHostHosthost"
ALICE = "12D3KooWAliceAliceAliceAliceAliceAliceAliceAlicealic"
BOB = "12D3KooWBobBobBobBobBobBobBobBobBobBobBobBobBobbobb"
HOSTILE = "12D3KooW\x1b[31mevil\x1b[0m\r\n\x07" + "\u202e" + "z" * 900


def peer(name, address, **changes):
    """One linked peer of a status."""
    standing = {
        "is_host": name == HOST,
        "weight": 1.0,
        "strikes": 0,
        "stalls": 0,
        "snubbed": False,
        "asked": 2,
        "queued": 1,
    }
    standing.update({key: changes.pop(key) for key in list(changes) if key in standing})
    return {
        "peer": name,
        "linked": True,
        "dialled": True,
        "address": address,
        "sent_bytes": 5_200_000,
        "received_bytes": 1_250_000,
        "up_rate": 310_000.0,
        "down_rate": 1_240_000.0,
        "standing": standing,
        "has_percent": None if name == HOST else 40,
        "region": 1,
    } | changes


def artifact(version, have, segments, **changes):
    return {
        "artifact": f"{version:064x}",
        "version": version,
        "seq": version + 2,
        "kind": "delta",
        "have": have,
        "segments": segments,
        "bytes": segments * 65_536,
        "sent_bytes": 0,
        "from_origin": have // 2,
        "from_peers": have - have // 2,
    } | changes


def starting():
    """Right after the start: nothing is known yet."""
    exchange = {
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
        "port": 40123,
        "up_kib": 0.0,
        "down_kib": 0.0,
        "disk_paused": False,
        "banned": {},
        "handshakes_refused": {},
        "bulk_pid": 4243,
        "restarts": 0,
    }
    return {
        "peer": "12D3KooWMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMeMememe",
        "swarm": "12D3KooWSwarmSwarmSwarmSwarmSwarmSwarmSwarmSwarmswrm",
        "host": None,
        "member": False,
        "tried": ["/ip4/127.0.0.1/tcp/4100: connection refused"],
        "head": {"age_seconds": None, "version": -1, "seq": 0, "generation": 0},
        "roster_epoch": 0,
        "uptime_seconds": 4.2,
        "version": -1,
        "version_age_seconds": None,
        "newest": -1,
        "digest": "",
        "audited": -1,
        "state": "starting",
        "problem": "",
        "commits": 0,
        "digest_audits": 0,
        "digest_mismatches": 0,
        "failures": 0,
        "transfer_seconds": 0.0,
        "waited_seconds": 0.0,
        "stage_seconds": 0.0,
        "commit_seconds": 0.0,
        "pause_seconds": [],
        "pause_p50_ms": None,
        "tokens_per_second": None,
        "recent_tokens_per_second": [],
        "tokens": 0,
        "samples": 0,
        "leases": 0,
        "lease": {"step": -1, "done": 0, "size": 0, "seconds_left": None},
        "admitted": 0,
        "refused": {},
        "exchange": exchange,
        "fetching": None,
        "fresh": False,
        "engine_restarts": 0,
        "equivocation": False,
        "draining": False,
        "presence": {"working": True, "paused_by": "", "detail": "", "until": "", "unloaded": False, "fetching": True},
        "disk": {"used": 1_200_000_000, "quota": 64_000_000_000, "free": 210_000_000_000},
        "log": [],
    }


def generating():
    """A healthy node in the middle of a lease."""
    status = starting()
    status["exchange"] |= {
        "sent_bytes": 12_400_000,
        "received_bytes": 3_700_000,
        "up_rate": 620_000.0,
        "peers": [
            peer(HOST, "127.0.0.1:4101", down_rate=40_000.0),
            peer(ALICE, "127.0.0.1:4102", has_percent=100),
            peer(BOB, "[::1]:4103", dialled=False, weight=0.5, stalls=3, has_percent=7, down_rate=0.0),
        ],
        "artifacts": [artifact(41, 302, 302), artifact(40, 288, 288)],
    }
    return status | {
        "host": HOST,
        "member": True,
        "tried": [],
        "fresh": True,
        "head": {"age_seconds": 8.4, "version": 41, "seq": 43, "generation": 1},
        "uptime_seconds": 3_720.0,
        "version": 41,
        "version_age_seconds": 12.9,
        "newest": 41,
        "audited": 32,
        "state": "generating",
        "commits": 40,
        "digest_audits": 3,
        "pause_p50_ms": 3.2,
        "tokens_per_second": 5_120.0,
        "recent_tokens_per_second": [0.0, 900.0, 2_600.0, 4_800.0, 5_200.0, 5_000.0, 0.0, 5_100.0] * 10,
        "tokens": 1_830_000,
        "samples": 7_040,
        "leases": 220,
        "lease": {"step": 42, "done": 12, "size": 32, "seconds_left": 8.6},
        "admitted": 7_001,
        "refused": {"lag": 25, "lease_expired": 2},
        "log": [f"serving version {version}" for version in range(30, 42)],
    }


def fetching():
    """Weights are on their way, one version is staged behind a lease."""
    status = generating()
    status["exchange"] |= {"down_rate": 1_240_000.0, "down_kib": 2_000.0}
    status["exchange"]["artifacts"].insert(0, artifact(42, 120, 302))
    coverage = [100] * 40 + [60, 33, 10] * 10 + [0] * 50 + [100] * 8 + [0] * 64
    return status | {
        "state": "idle: version too old",
        "lease": {"step": 42, "done": 32, "size": 32, "seconds_left": None},
        "head": {"age_seconds": 1.0, "version": 42, "seq": 44, "generation": 1},
        "fetching": {
            "version": 42,
            "kind": "delta",
            "have": 120,
            "segments": 302,
            "segment_bytes": 65_536,
            "coverage": coverage,
            "holders": 2,
        },
    }


def idle():
    """Nothing to do: the host has no work."""
    return generating() | {
        "state": "idle: no work",
        "lease": {"step": 41, "done": 32, "size": 32, "seconds_left": None},
        "refused": {},
    }


def paused():
    """The owner has paused it, in the middle of the night."""
    status = idle()
    status["presence"] |= {"working": False, "paused_by": "owner", "detail": "paused by the owner", "unloaded": True}
    return status | {"state": "paused: paused by the owner", "newest": 43}


def banned():
    """Two peers have sent bytes that failed their hash."""
    status = generating()
    status["exchange"] |= {
        "banned": {ALICE: 52.0, BOB: 230.5},
        "ban_reasons": {ALICE: "segment 5 fails its hash", BOB: "a wrong page: it belongs to another artifact"},
        "peers": [
            peer(HOST, "127.0.0.1:4101", strikes=0),
            peer("12D3KooWCarolcarolcarol", "127.0.0.1:4104", strikes=1),
        ],
    }
    return status | {"engine_restarts": 1, "digest_mismatches": 1}


def disk_full():
    """No room for the next version."""
    status = generating()
    status["exchange"] |= {"disk_paused": True}
    return status | {
        "state": "idle: version too old",
        "lease": {"step": 41, "done": 32, "size": 32, "seconds_left": None},
        "head": {"age_seconds": 95.0, "version": 44, "seq": 46, "generation": 1},
        "problem": "an artifact of up to 1,200,000,000 bytes does not fit: 400,000,000 of 2,000,000,000 are left; "
        "raise quota_gib in the settings",
        "disk": {"used": 1_600_000_000, "quota": 2_000_000_000, "free": 390_000_000},
    }


def hostile():
    """Every text that comes from others is an attack on the terminal."""
    status = generating()
    status["exchange"] |= {
        "peers": [peer(HOSTILE, HOSTILE)],
        "banned": {HOSTILE: 9.0},
        "ban_reasons": {HOSTILE: HOSTILE},
    }
    return status | {
        "host": HOSTILE,
        "swarm": HOSTILE,
        "state": f"no lease: {HOSTILE}",
        "problem": HOSTILE,
        "tried": [HOSTILE],
        "refused": {HOSTILE: 3},
        "log": [HOSTILE, "[bold]no markup[/bold] :smile:", "漢字" * 60],
        "fresh": False,
    }


STATES = (starting, fetching, generating, idle, paused, banned, disk_full, hostile)


GALLERY = Gallery("tests.node.screens", STATES, SIZES, render_screen, plain_line, why)

if __name__ == "__main__":
    GALLERY.write()
