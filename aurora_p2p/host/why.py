"""What a run waits for, and what to do about it: a pure function of the host's status.

    why(status)              sentences for a person, the one that explains most first; never empty
    why_step(status, step)   one line for the trainer that waits for a step

What stops everything comes first (the disk, the owner, a second publisher), then what keeps the oldest open step from
being complete, then the nodes behind it, the trainer, and what went wrong on the side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aurora_p2p.local.output import clean
from aurora_p2p.local.screen.figures import age, short, size

Status = Mapping[str, Any]
Node = Mapping[str, Any]

MAX_SENTENCE = 400
MAX_TOLD = 512
"""Characters for a trainer: what the wire allows."""
TOLD_NODES = 4
"""Nodes named in one sentence."""
TOLD_REFUSALS = 4
SILENT_SECONDS = 20.0
"""A node that is well reports every 15 s."""
RESTING = ("paused", "unloaded", "standing still")
"""How the state of a node begins that takes no lease by its owner's will, or out of caution (work.py, engines.py)."""
STALE_REFUSALS = 0.01
"""Share of results refused below which it is not worth a sentence."""

_REFUSED = {
    "lag": "made with weights older than the step allows: nodes fall behind the trainer",
    "lease_expired": "they came after the lease's deadline: nodes are slower, or further away, than expected",
    "lease_spent": "the lease had been used up",
    "lease_unknown": "this host does not know the lease any more, as after a restore from a backup",
    "fenced": "the node was late, and an idle one had got the samples meanwhile",
    "duplicate": "another copy was admitted before",
    "too_late": "the step was consumed before they came",
    "wrong_digest": "a node serves other weights than it says: its memory or disk may be bad",
    "wrong_manifest": "made with an artifact that was withdrawn",
    "wrong_seed": "they do not follow from their seeds",
    "wrong_run": "made for another run",
    "not_in_lease": "nobody had asked for them",
    "not_the_lessee": "sent by a node that does not hold the lease",
    "bad_logprobs": "their probabilities do not fit: other software, or bad memory",
    "bad_tokens": "tokens outside the vocabulary or the length allowed",
    "bad_finish": "they end otherwise than the lease allows",
    "bad_signature": "their signature does not verify",
    "malformed": "they could not be read: a node runs another version of the software",
}


def why(status: Status) -> list[str]:
    """Sentences for a person, safe to print. The status may come from an older host."""
    told = [sentence for rule in _RULES for sentence in rule(status)]
    limit = MAX_SENTENCE + len(status.get("ticket") or "")  # a ticket that is cut is of no use
    return [clean(sentence, limit) for sentence in told] or ["everything is under way: nothing is waited for"]


def why_step(status: Status, step: int) -> str:
    """Why the rollouts of a step are not complete, at most MAX_TOLD characters; empty when nothing is known."""
    open_steps = [one for one in status["work"]["steps"] if one["step"] == step and one.get("why")]
    nobody = [] if status["nodes"] else ["no node has joined"]
    told = [*_stopped(status), *nobody, *(_step_sentence(status, one) for one in open_steps)]
    return clean("; ".join(told), MAX_TOLD)


# ---- what stops everything


def _stopped(status: Status) -> list[str]:
    told = []
    waits = (status.get("ledger") or {}).get("waits")
    if waits:
        told.append(f"{waits}: nothing is granted or acknowledged until there is room; then it goes on by itself")
    elif status.get("publication_waits"):
        told.append(f"no version can be published: {status['publication_waits']}; the trainer tries again by itself")
    if status.get("equivocation"):
        told.append("another process publishes with this swarm's key, and nodes stand still: stop one of the two")
    live = status["work"].get("live_leases", 0)
    if status.get("draining"):
        told.append(f"stopping: no new leases are granted, {live} live ones are waited for")
    elif status.get("paused"):
        told.append("paused by the owner: no new leases are granted; type `aurora-host resume` to go on")
    return told


def _publishing(status: Status) -> list[str]:
    extract = status["pipeline"].get("extract")
    if not extract:
        return []
    so_far = f"{size(extract['bytes'])} so far, for {age(extract['seconds'])}"
    return [f"version {extract['version']} is being published: {so_far}"]


def _unpublished(status: Status) -> list[str]:
    if status["version"] >= 0 or status["pipeline"].get("extract"):
        return []
    trainer = "a trainer is connected" if status["trainer"]["connections"] else "no trainer is connected"
    return [f"nothing is published yet and {trainer}: name a checkpoint in run.toml, or publish from the trainer"]


def _no_nodes(status: Status) -> list[str]:
    if status["nodes"]:
        return []
    ticket = status.get("ticket") or "and the ticket that aurora-host status shows"
    return [f"no node has joined: on another machine, type aurora-node join {ticket}"]


# ---- the steps


def _steps(status: Status) -> list[str]:
    """The oldest step that waits, and how many more do."""
    waiting = [step for step in status["work"]["steps"] if step.get("why")]
    if not waiting or status["version"] < 0 or not status["nodes"]:
        return []
    told = [_step_sentence(status, waiting[0])]
    later = [f"step {step['step']} ({step['admitted']} of {step['total']} admitted)" for step in waiting[1:]]
    if later:
        told.append(f"then {_listed(later)}")
    return told


def _step_sentence(status: Status, step: Mapping[str, Any]) -> str:
    reasons = [f"step {step['step']} waits for {step['why']}"]
    behind = _behind(status, step["step"])
    if behind and (step["open"] or step["leased"]):
        reasons.append(behind)
    return "; ".join(reasons)


def _behind(status: Status, step: int) -> str:
    """The nodes that could not work on the step with the weights they serve, and what each does about it."""
    late = _late(status, step)
    if not late:
        return ""
    held = sorted({node["version"] for node in late})
    head = f"{_nodes(len(late))} {'is' if len(late) == 1 else 'are'} still at {_versions(held)}"
    return f"{head}: {_listed([_doing(node) for node in late])}; see aurora-host status --json"


def _late(status: Status, step: int) -> list[Node]:
    oldest = step - status["work"].get("max_lag", 1)
    return [node for node in status["nodes"] if node["version"] < min(oldest, status["version"])]


def _resting(status: Status) -> list[str]:
    """Nodes that could take open samples with the weights they serve, and take none: paused, unloaded, silent."""
    waiting = [step for step in status["work"]["steps"] if step.get("why") and step["open"]]
    if not waiting or status["version"] < 0:
        return []
    late = {node["peer"] for node in _late(status, waiting[0]["step"])}
    able = [node for node in status["nodes"] if node["peer"] not in late and not node["leased"]]
    resting = [node for node in able if _silent_seconds(node) > SILENT_SECONDS or _rests(node)]
    if not resting:
        return []
    return [
        f"{_nodes(len(resting))} take{'s' if len(resting) == 1 else ''} no work: {_listed(list(map(_doing, resting)))}"
    ]


def _rests(node: Node) -> bool:
    """Whether it says itself that it wants no lease now."""
    return bool(node.get("progress")) and node["progress"]["state"].startswith(RESTING)


def _silent_seconds(node: Node) -> float:
    """Since its own last word: its data plane may go on without it."""
    progress = node.get("progress") or {}
    return float(max(node["seen_seconds"], progress.get("age_seconds", 0.0)))


def _versions(held: list[int]) -> str:
    if held[-1] < 0:
        return "no version"
    return f"version {held[0]}" if len(held) == 1 else f"versions {max(held[0], 0)} to {held[-1]}"


def _doing(node: Node) -> str:
    name, progress = f"...{short(node['peer'])}", node.get("progress")
    if _silent_seconds(node) > SILENT_SECONDS:
        return f"{name} has not been heard of for {age(_silent_seconds(node))}"
    if not progress:
        return f"{name} has not reported what it does"
    if progress["fetching"] >= 0:
        total = f" of {progress['total']}" if progress["total"] else ""
        return f"{name} fetches version {progress['fetching']} ({progress['have']}{total} segments)"
    if progress["staged"] > node["version"]:
        return f"{name} has staged version {progress['staged']} and takes it after its lease"
    return f"{name} says: {progress['state'].removeprefix('paused: ') or 'nothing'}"


def _lagging(status: Status) -> list[str]:
    """Nodes behind the newest version while no step waits for them."""
    if status["version"] < 0 or any(step.get("why") for step in status["work"]["steps"]):
        return []
    late = [node for node in status["nodes"] if node["version"] < status["version"]]
    if not late:
        return []
    nodes = _nodes(len(status["nodes"]))
    text = f"{len(late)} of {nodes} do{'es' if len(late) == 1 else ''} not serve version {status['version']} yet"
    return [f"{text}: {_listed([_doing(node) for node in late])}"]


# ---- the trainer


def _trainer(status: Status) -> list[str]:
    if status["version"] < 0:
        return []
    trainer, published = status["trainer"], _published(status)
    if not trainer["connections"]:
        last = f"last published version {status['version']}{published}"
        return [f"no trainer is connected; {last}; start it: it attaches to trainer.sock in the host's home"]
    if trainer["waits_for"] is not None:
        return [f"the trainer has waited for step {trainer['waits_for']} for {age(trainer['waiting_seconds'])}"]
    if any(step.get("why") for step in status["work"]["steps"]) or status["pipeline"].get("extract"):
        return []
    done = [step["step"] for step in status["work"]["steps"] if step["step"] >= status["version"]]
    if done:
        return [f"all samples of step {done[0]} are in: the trainer is training, or has to take them{published}"]
    return [f"all work is done: waiting for the trainer to submit step {status['version']}{published}"]


def _published(status: Status) -> str:
    seconds = status.get("head_age_seconds")
    return f" ({age(seconds)} ago)" if seconds is not None else " (before this start)"


# ---- on the side


def _refused(status: Status) -> list[str]:
    refused = status["work"]["refused"]
    admitted = sum(node["admitted"] for node in status["work"]["nodes"])
    if sum(refused.values()) <= STALE_REFUSALS * admitted:
        return []
    worst = sorted(refused.items(), key=lambda pair: -pair[1])[:TOLD_REFUSALS]
    return [
        f"{count} result{'s were' if count > 1 else ' was'} refused as {reason.replace('_', ' ')}"
        + (f": {_REFUSED[reason]}" if reason in _REFUSED else "")
        + _by(status, reason)
        for reason, count in worst
    ]


def _by(status: Status, reason: str) -> str:
    """Who sent most of them, when that is one node among several."""
    counts = {node["peer"]: node["refused"].get(reason, 0) for node in status["nodes"]}
    worst = max(counts, key=lambda peer: counts[peer], default=None)
    if worst is None or len(counts) < 2 or counts[worst] * 2 <= sum(counts.values()):
        return ""
    return f" (mostly from ...{short(worst)})"


def _withheld(status: Status) -> list[str]:
    lost = [node for node in status["nodes"] if node["withheld"] > node["admitted"]]
    if not lost:
        return []
    named = _listed([f"...{short(node['peer'])} ({node['withheld']})" for node in lost])
    return [f"{_nodes(len(lost))} let more samples expire than {'it' if len(lost) == 1 else 'they'} sent: {named}"]


def _disk(status: Status) -> list[str]:
    disk = status.get("disk") or {}
    newest = status["pipeline"].get("bytes", 0)
    if not disk or not newest:
        return []
    left = min(disk["quota"] - disk["used"], disk["free"])
    if left > 2 * newest:
        return []
    text = f"room for artifacts is running out: {size(max(left, 0))} left, the newest took {size(newest)}"
    return [f"{text}; raise quota_gib in run.toml, or free space"]


def _mishaps(status: Status) -> list[str]:
    exchange, folds, told = status["exchange"], status.get("folds") or {}, []
    if folds.get("failed"):
        told.append(f"the last squash or snapshot could not be made: {folds['failed']}; it is tried again by itself")
    banned = exchange.get("banned") or {}
    if banned:
        reasons = exchange.get("ban_reasons") or {}
        named = [
            f"...{short(peer)} for {age(left)} ({reasons.get(peer, 'no reason kept')})" for peer, left in banned.items()
        ]
        told.append(f"{len(banned)} peer{' is' if len(banned) == 1 else 's are'} banned here: {_listed(named)}")
    if exchange.get("restarts"):
        count = exchange["restarts"]
        told.append(f"the bulk process was restarted {'once' if count == 1 else f'{count} times'}: see bulk.log")
    return told


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - TOLD_NODES} more" if len(parts) > TOLD_NODES else ""
    return ", ".join(parts[:TOLD_NODES]) + more


_RULES: tuple[Callable[[Status], list[str]], ...] = (
    _stopped,
    _unpublished,
    _publishing,
    _no_nodes,
    _steps,
    _resting,
    _trainer,
    _lagging,
    _disk,
    _refused,
    _withheld,
    _mishaps,
)
