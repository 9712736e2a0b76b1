"""Why a node is idle, behind or not contributing, and what to do about it: a pure function of its status.

    why(status) -> sentences, the one that explains most first; never empty

What stops work comes first (the owner, no host, a contradiction), then what keeps the weights old, then the work
itself, then what went wrong on the side (refusals, bans, restarts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aurora_p2p.local.output import clean
from aurora_p2p.local.screen.figures import age, rate, short, size

Status = Mapping[str, Any]

HEAD_LATE_SECONDS = 60.0
"""A HEAD is asked for every 40 s: an older one means that at least one attempt has failed."""
TOLD_PEERS = 4
MAX_SENTENCE = 400
REFUSES = "the host refuses: "
"""How a refused join begins, in `tried`."""
NOTHING_ARRIVES = 1.0
"""Bytes/s below which a transfer stands still."""

_IDLE = {
    "no work": "the host has no work now: all samples of the open steps are leased or done; it is asked again soon",
    "version too old": "the host leases work for newer weights only: this node works again once it has them",
    "version unknown": "the host does not know the version held here: this node works again with the next version",
    "quarantined": "the host gives this node no work, because results that it sent failed a check",
    "draining": "the host is stopping and gives no more leases; the node waits for it to come back",
    "paused": "the host's operator has paused the leases; work goes on when they resume",
    "disk full": "the host's disk is full, so nothing can be leased or acknowledged; its operator has to make room",
    "wrong digest": "the weights held here are not those that the host published; newer ones mend it, and if it comes "
    "back, test this machine's memory",
    "wrong manifest": "the weights held here are of an artifact that was withdrawn; the next version mends it",
    "wrong run": "the weights held here are of another run than the host's; the next version mends it",
    "not a member": "the host does not know this node any more: it joins again by itself",
}
_STATES = {
    "starting": "the engine is being started",
    "asking for work": "asking the host for work: it answers as soon as there is some, or after 2 s that there is none",
}
_REFUSED = {
    "lag": "made with weights older than the step allows: the node was behind when it took the lease",
    "lease_expired": "they came after the lease's deadline: the node or its connection was slower than expected",
    "lease_spent": "the lease was already used up",
    "lease_unknown": "the host does not know the lease any more, as after it was restored from a backup",
    "fenced": "the node was late, and an idle one had got the samples meanwhile",
    "duplicate": "another copy was admitted before",
    "too_late": "the step was already complete",
    "unsent": "the host could not be reached before the lease ended",
    "wrong_digest": "the weights named are not those of the version: look for bad memory on this machine",
    "wrong_manifest": "made with an artifact that the publisher has withdrawn",
    "wrong_seed": "the samples do not follow from their seeds",
    "bad_logprobs": "their probabilities do not fit the model: different software or hardware, or bad memory",
    "bad_tokens": "tokens outside the vocabulary or the length allowed",
    "bad_finish": "they end otherwise than the lease allows",
    "bad_signature": "their signature does not verify",
    "malformed": "the host could not read them: one side runs another version of the software",
    "not_in_lease": "the lease had not asked for them: that should not happen; a support bundle helps to find out",
    "not_the_lessee": "the lease is another node's: that should not happen; a support bundle helps to find out",
    "wrong_run": "made for another run than the host's: the next lease is of the right one",
}


def why(status: Status) -> list[str]:
    """Sentences for a person: what it waits for and what to type. The status may come from an older daemon."""
    told = [sentence for rule in _RULES for sentence in rule(status)]
    return [clean(sentence, MAX_SENTENCE) for sentence in told]


def unpublished(status: Status) -> bool:
    """Whether the host has answered without a HEAD: there is no version yet, so that none can be fresh."""
    head = status.get("head") or {}
    known = head.get("age_seconds") is not None or head.get("version", -1) >= 0 or status["version"] >= 0
    return bool(status.get("member")) and not known and not status.get("equivocation")


def _paused(status: Status) -> list[str]:
    presence = status.get("presence") or {}
    by, detail, until = (str(presence.get(key) or "") for key in ("paused_by", "detail", "until"))
    if not by:
        return []
    match by:
        case "owner":
            text = "paused by the owner: type `aurora-node resume` to work again"
        case "hours":
            text = f"outside working hours until {until or 'they begin'} (hours in node.toml)"
        case _:
            text = f"paused ({by.replace('-', ' ')}): {detail}" + (f", until {until}" if until else "")
    if by == "disk":
        text = f"short of disk: {detail}; free some space, or lower min_free_disk_gib in node.toml"
    return [text + ("; the engine has ended meanwhile, so its memory is free" if presence.get("unloaded") else "")]


def _draining(status: Status) -> list[str]:
    return ["draining: it takes no new lease, sends what is finished, and ends"] if status.get("draining") else []


def _contradicted(status: Status) -> list[str]:
    if not status.get("equivocation"):
        return []
    return [
        "standing still: the publisher signed two artifacts with one number; the proof is kept, and work begins again "
        "when the operator has renewed the publisher's keys"
    ]


def _host(status: Status) -> list[str]:
    """Without a host, or without its fresh word, no lease is worked on."""
    tried = "; ".join(status.get("tried") or ())
    reach = "check that `aurora-host run` is up and that its address can be reached from here"
    if not status.get("host"):
        return [f"no host has answered yet{': tried ' + tried if tried else ''}; {reach}"]
    seconds = (status.get("head") or {}).get("age_seconds")
    late = seconds is not None and seconds > HEAD_LATE_SECONDS
    if status.get("fresh") and not status.get("member"):
        if REFUSES in tried:
            return [f"not a member now: {tried}; it joins again by itself"]
        return [f"the host does not answer{'; tried ' + tried if tried else ''}; it is tried again by itself; {reach}"]
    if (status.get("fresh") and not late) or unpublished(status):
        return []
    if status.get("fresh"):
        return [
            f"the newest HEAD is {age(seconds)} old: the host has not answered the last question; it is asked again"
        ]
    named = f"no fresh HEAD for {age(seconds)}" if seconds is not None else "no fresh HEAD yet"
    if status.get("member"):
        return [f"{named}: the host has not answered the last question; it is asked again by itself"]
    return [f"{named}: the host does not answer{'; tried ' + tried if tried else ''}; {reach}"]


def _problem(status: Status) -> list[str]:
    told = [f"problem: {status['problem']}"] if status.get("problem") else []
    if status["exchange"].get("disk_paused"):
        told.append(f"the disk takes no more segments: {_room(status)}; free space, and fetching goes on by itself")
    return told


def _room(status: Status) -> str:
    disk = status.get("disk") or {}
    if not disk:
        return "it is full, or refuses to write"
    quota = f"{size(disk['used'])} of quota_gib's {size(disk['quota'])} are in use"
    return f"{size(disk['free'])} are free, {quota}"


def _behind(status: Status) -> list[str]:
    """What stands between the weights held and the newest ones."""
    if not status.get("host") and status["version"] < 0:
        return []  # before the first host answers, nothing can be on its way
    if unpublished(status) and not status.get("fetching"):
        return ["nothing is published yet: work begins by itself with the trainer's first version"]
    held, staged, target = status["version"], status["newest"], (status.get("head") or {}).get("version", -1)
    if staged > held:
        return [_staged(status, staged)]
    fetching = status.get("fetching")
    if fetching:
        return _fetching(status, fetching)
    arrived = [one for one in status["exchange"]["artifacts"] if _is_complete(one) and one["version"] > held]
    if arrived:
        return [f"version {max(one['version'] for one in arrived)} has arrived and is being decoded"]
    if held < target:
        named = f"version {target} is the newest, {'nothing' if held < 0 else f'version {held}'} is held"
        return [f"{named}, and no artifact that leads there is on its way: {_links(status)}"]
    return [] if held >= 0 else [f"nothing is published yet, or nobody has offered it: {_links(status)}"]


def _staged(status: Status, staged: int) -> str:
    lease = status["lease"]
    if lease.get("seconds_left") is None:
        return f"version {staged} is staged and is taken before the next lease"
    left = age(lease["seconds_left"])
    return f"version {staged} is staged and waits for the lease to end ({left} at most, {_progress(lease)})"


def _fetching(status: Status, fetching: Mapping[str, Any]) -> list[str]:
    have, total, speed = fetching["have"], fetching["segments"], status["exchange"]["down_rate"]
    known = f"{have} of {total} segments" if total else "its first segments are not announced yet"
    text = f"fetching version {fetching['version']}: {known}, {_links(status)}"
    if speed < NOTHING_ARRIVES:
        cap = status["exchange"]["down_kib"]
        return [f"{text}, and nothing arrives now" + (f" (the download cap is {cap:g} KiB/s)" if cap else "")]
    left = max(max(total - have, 0) * fetching["segment_bytes"] / speed, 1.0)
    return [f"{text}, {rate(speed)}, about {age(left)}"]


def _links(status: Status) -> str:
    count = sum(peer["linked"] for peer in status["exchange"]["peers"])
    if not count:
        return "no peer is linked (is port {} reachable, and may this machine dial out?)".format(
            status["exchange"].get("port", "of bulk_listen")
        )
    return f"{count} peer{'s' if count > 1 else ''} linked"


def _work(status: Status) -> list[str]:
    state, lease = str(status["state"]), status["lease"]
    presence = status.get("presence") or {}
    if presence.get("working") is False and presence.get("paused_by") and lease.get("seconds_left") is None:
        return []  # what pauses the machine is said already
    if not status.get("host"):
        return []  # that there is none is said already, and the engine waits for it
    if not status.get("member") and state.startswith(("idle: ", "no lease: ")):
        return []  # what the host said last, before it was lost
    if state == "generating" and lease.get("seconds_left") is not None:
        return [f"working on step {lease['step']}: {_progress(lease)}, {age(lease['seconds_left'])} left"]
    idle = state.removeprefix("idle: ")
    if idle in _IDLE:
        return [_IDLE[idle]]
    if state.startswith("no lease: "):
        return [f"the host gave no lease: {state.removeprefix('no lease: ')}; it is asked again every second"]
    return [_STATES.get(state, state)]


def _progress(lease: Mapping[str, Any]) -> str:
    return f"{lease['done']} of {lease['size']} samples done"


def _refused(status: Status) -> list[str]:
    return [
        f"{count} sample{' was' if count == 1 else 's were'} refused as {reason.replace('_', ' ')}"
        + (f": {_REFUSED[reason]}" if reason in _REFUSED else "")
        for reason, count in sorted(status["refused"].items(), key=lambda pair: -pair[1])
    ]


def _banned(status: Status) -> list[str]:
    banned, reasons = status["exchange"]["banned"], status["exchange"].get("ban_reasons") or {}
    if not banned:
        return []
    told = [
        f"...{short(peer)} for {age(left)} ({reasons.get(peer, 'no reason kept')})" for peer, left in banned.items()
    ]
    more = f" and {len(told) - TOLD_PEERS} more" if len(told) > TOLD_PEERS else ""
    one = len(told) == 1
    return [f"{len(told)} peer{' is' if one else 's are'} banned here: {'; '.join(told[:TOLD_PEERS])}{more}"]


def _mishaps(status: Status) -> list[str]:
    told = []
    if status.get("engine_restarts"):
        told.append(f"the engine was restarted {_times(status['engine_restarts'])}: what it said is in engine.log")
    if status["exchange"].get("restarts"):
        told.append(f"the bulk process was restarted {_times(status['exchange']['restarts'])}: see bulk.log")
    if status["digest_mismatches"]:
        told.append(
            f"weights failed their digest {_times(status['digest_mismatches'])} and were rebuilt: if it happens again, "
            "test this machine's memory"
        )
    return told


def _folds(status: Status) -> list[str]:
    """What it makes for others beside its work."""
    folds = status.get("folds") or {}
    making, failed = folds.get("rebuilding"), folds.get("rebuild_failed")
    if making:
        count = f"{making['have']} of {making['segments']} segments"
        return [
            f"rebuilding the snapshot of version {making['version']} for newcomers, when nothing else runs: {count}"
        ]
    return [f"the last snapshot for newcomers was not rebuilt: {failed}; it is left to other members"] if failed else []


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _is_complete(artifact: Mapping[str, Any]) -> bool:
    return bool(0 < artifact["segments"] <= artifact["have"])


_RULES: tuple[Callable[[Status], list[str]], ...] = (
    _draining,
    _paused,
    _contradicted,
    _host,
    _problem,
    _behind,
    _work,
    _refused,
    _banned,
    _folds,
    _mishaps,
)
