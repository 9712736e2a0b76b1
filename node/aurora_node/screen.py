"""A node's screen: a pure render of its status, and the view that `join` and `aurora-node tui` show.

    render_screen(status, width, height)   40 to 200 columns; everything it says in colour it says in words as well
    plain_line(status)                     the same in one line, for pipes and TERM=dumb
    show_screen(commands, output)          in the daemon, until cancelled (terminal, pipe or --json: it decides)
    attach_screen(home)                    `aurora-node tui`: over the control socket of a running daemon

What a narrow or low terminal has no room for is left out from the right and from below, the log first.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from aurora_node.status import speed_unit
from aurora_node.why import unpublished, why
from aurora_p2p.local.control import Handler, socket_path
from aurora_p2p.local.output import Output, clean
from aurora_p2p.local.screen.figures import (
    UNKNOWN,
    age,
    count,
    counted,
    rate,
    segment_bar,
    share,
    short,
    size,
    sparkline,
)
from aurora_p2p.local.screen.panels import Piece, Section, arrange, column_widths, line, table

if TYPE_CHECKING:
    from rich.console import Group

    from aurora_p2p.local.screen.session import View

Status = Mapping[str, Any]

TWO_COLUMNS = 110
"""Columns from which the peers stand beside the figures instead of below them."""
SHARES = (3, 5)
MAP_LINES = 3
MAX_ADDRESS = 47
"""Letters of the longest "[ipv6]:port"."""
MAX_PLAIN = 300
LABEL = 11
"""Width of the names before figures."""


def render_screen(status: Status, width: int, height: int) -> Group:
    """Exactly `height` lines of at most `width` cells."""
    widths = column_widths(width, SHARES) if width >= TWO_COLUMNS else [width]
    left, right = widths[0], widths[-1]
    own = [
        Section("why", _why(status, left), least=2),
        Section("weights", _weights(status), least=2),
        Section(_flight_title(status), _flight(status, left), least=3),
        Section("work", _work(status, left), least=3),
    ]
    others = [Section(_peers_title(status), _peers(status, right), least=3)]
    log = [Section("log", [line(text) for text in status.get("log") or ()], tail=True)]
    columns = [own, others + log] if len(widths) > 1 else [own + others + log]
    return arrange(_head(status), columns, widths, width, height)


def plain_line(status: Status) -> str:
    """What changes when something happens; ages and rates are left out, for they always change."""
    refused = sum(status["refused"].values())
    speed = status["tokens_per_second"]
    held, staged, lease = status["version"], status["newest"], status["lease"]
    step = f"  step {lease['step']}: {lease['done']}/{lease['size']}" if lease["seconds_left"] is not None else ""
    presence = status.get("presence") or {}
    parts = [
        f"{_mood(status)[0]} ({presence.get('paused_by') or status['state'].removeprefix('idle: ')}){step}",
        f"version {_version(held)}" + (f" (staged {staged})" if staged > held else ""),
        counted(_linked(status), "peer"),
        f"{count(speed)} {speed_unit(status)}" if speed else "speed not measured yet",
        f"{status['admitted']} admitted" + (f", {refused} refused" if refused else ""),
    ]
    return clean("  ".join(parts), MAX_PLAIN)


async def show_screen(commands: Mapping[str, Handler], output: Output, *, plain: bool = False) -> None:
    """Show this daemon's screen until cancelled; with --json nothing. commands: what serve_control answers with.

    Used: status, pause, resume, caps ({"up_kib", "down_kib"}), quit ({"now": bool}); each answer may have a "text".
    Start it as a task beside the others, inside the daemon's own signal handling.
    """
    from aurora_p2p.local.screen.session import show

    await show(_view(), commands, output, plain=plain)


def attach_screen(home: Path) -> None:
    """Attach to the daemon of this home. Raises UnreachableError when none answers."""
    from aurora_p2p.local.screen.session import attach

    attach(_view(), socket_path(home, "control"))


def _view() -> View:
    from aurora_p2p.local.screen.session import View

    return View(render_screen, plain_line, "the node has stopped")


# ---- the sections


def _head(status: Status) -> list[Text]:
    word, style = _mood(status)
    return [
        line(
            ("aurora-node", "bold"),
            f" ...{short(status['peer'])}  ",
            (word, style),
            f"  up {age(status['uptime_seconds'])}",
        ),
        line(f"swarm {status['swarm']}"),
    ]


def _mood(status: Status) -> tuple[str, str]:
    """One word for what the node is doing."""
    presence = status.get("presence") or {}
    if status.get("draining"):
        return "draining", "bold yellow"
    if status.get("equivocation"):
        return "standing still", "bold red"
    if presence.get("working") is False:
        return "paused", "bold yellow"
    if not status.get("host"):
        return "looking for a host", "bold yellow"
    if not status.get("fresh") and not unpublished(status):
        return "stale", "bold red"
    return ("working", "bold green") if status["state"] == "generating" else ("idle", "bold yellow")


def _why(status: Status, width: int) -> list[Text]:
    lines: list[Text] = []
    for sentence in why(status):
        for index, part in enumerate(textwrap.wrap(sentence, max(width - 2, 8))):
            lines.append(line("- " if index == 0 else "  ", part))
    return lines


def _weights(status: Status) -> list[Text]:
    head = status["head"]
    fresh = ("fresh", "green") if status.get("fresh") else ("not fresh", "bold red")
    held = f"{status['version']} for {age(status['version_age_seconds'])}" if status["version"] >= 0 else "none yet"
    pause = status["pause_p50_ms"]
    return [
        _figure("version", (held, "bold"), f"  staged {_version(status['newest'])}"),
        _figure("HEAD", f"{_version(head['version'])}  seq {head['seq']}  {age(head['age_seconds'])} ago  ", fresh),
        _figure(
            "audited",
            f"{_version(status['audited'])}  {status['digest_audits']} audits, {status['digest_mismatches']} wrong",
        ),
        _figure("commits", f"{status['commits']}  pause {UNKNOWN if pause is None else f'{pause:.0f} ms'}"),
    ]


def _flight_title(status: Status) -> str:
    fetching = status.get("fetching")
    return f"in flight: version {fetching['version']} ({fetching['kind']})" if fetching else "in flight: nothing"


def _flight(status: Status, width: int) -> list[Text]:
    exchange, fetching = status["exchange"], status.get("fetching")
    rates = f"down {rate(exchange['down_rate'])}{_cap(exchange['down_kib'])}  up {rate(exchange['up_rate'])}"
    lines = []
    if fetching:
        rows = min(-(-len(fetching["coverage"]) // width), MAP_LINES)
        bar = segment_bar(fetching["coverage"], rows * width)
        lines += [line(bar[start : start + width]) for start in range(0, len(bar), width)]
        have, total = fetching["have"], fetching["segments"]
        lines.append(
            _figure("segments", f"{have}/{total} ({share(have, total)}) from {counted(fetching['holders'], 'peer')}")
        )
    lines.append(_figure("rate", rates + _cap(exchange["up_kib"])))
    if status.get("disk"):
        disk = status["disk"]
        lines.append(_figure("disk", f"{size(disk['used'])} of {size(disk['quota'])}, {size(disk['free'])} free"))
    if exchange.get("disk_paused"):
        lines.append(line(("the disk takes no more segments", "bold red")))
    return lines


def _work(status: Status, width: int) -> list[Text]:
    speed, lease, recent = status["tokens_per_second"], status["lease"], status["recent_tokens_per_second"]
    lines = [
        _figure("tokens/s", (count(speed), "bold"), " ", sparkline(recent, max(width - LABEL - 6, 0))),
        *([line("the engine is simulated: it invents tokens")] if "simulated" in speed_unit(status) else []),
        _figure("lease", _lease(lease)),
        _figure("admitted", (str(status["admitted"]), "bold"), f" of {status['samples']} in {status['leases']} leases"),
    ]
    refused = [f"{number} {reason.replace('_', ' ')}" for reason, number in sorted(status["refused"].items())]
    if refused:
        lines.append(_figure("refused", (", ".join(refused), "yellow")))
    served, taken = status["exchange"]["sent_bytes"], status["exchange"]["received_bytes"]
    own = f"{count(status['samples'])} samples, {count(status['tokens'])} tokens"
    lines.append(_figure("given", f"{own}, {size(served)} served"))
    lines.append(_figure("received", size(taken)))
    return lines


def _lease(lease: Mapping[str, Any]) -> str:
    if lease["seconds_left"] is None:
        return "none" if lease["step"] < 0 else f"none (last: step {lease['step']}, {lease['done']}/{lease['size']})"
    return f"step {lease['step']}  {lease['done']}/{lease['size']}  {age(lease['seconds_left'])} left"


def _peers_title(status: Status) -> str:
    banned = len(status["exchange"]["banned"])
    return f"peers: {_linked(status)} linked" + (f", {banned} banned" if banned else "")


_COLUMNS: tuple[tuple[str, int], ...] = (
    ("peer", 0),
    ("down/s", 0),
    ("up/s", 0),
    ("has", 0),
    ("via", 52),
    ("strikes", 60),
    ("weight", 66),
    ("address", 72),
    ("region", 96),
    ("stalls", 104),
)
"""Columns of the peer table, and the width from which each is shown."""
_RIGHT = {"down/s", "up/s", "has", "strikes", "weight", "region", "stalls"}


def _peers(status: Status, width: int) -> list[Text]:
    exchange = status["exchange"]
    names = [name for name, least in _COLUMNS if width >= least]
    linked = [peer for peer in exchange["peers"] if peer["linked"]]
    linked.sort(key=lambda peer: (not _standing(peer)["is_host"], -peer["down_rate"] - peer["up_rate"], peer["peer"]))
    rows = [[_cell(peer, name) for name in names] for peer in linked]
    right = frozenset(index for index, name in enumerate(names) if name in _RIGHT)
    gap = 1 if width < 96 else 2
    heading: list[Piece] = [(name, "bold") for name in names]
    lines = table([heading, *rows], right=right, gap=gap) if rows else [line("no peer is linked")]
    reasons = exchange.get("ban_reasons") or {}
    banned = [
        line((f"...{short(peer)} banned for {age(left)}", "red"), f": {reasons.get(peer, '')}")
        for peer, left in sorted(exchange["banned"].items())
    ]
    return lines[:1] + banned + lines[1:]


def _cell(peer: Mapping[str, Any], name: str) -> Piece:
    standing = _standing(peer)
    match name:
        case "peer":
            return short(peer["peer"]) + (" host" if standing["is_host"] else "")
        case "down/s" | "up/s":
            return size(peer[f"{name.removesuffix('/s')}_rate"])
        case "has":
            return UNKNOWN if peer.get("has_percent") is None else f"{peer['has_percent']} %"
        case "via":
            return "TLS out" if peer["dialled"] else "TLS in"
        case "strikes" | "stalls":
            return (str(standing[name]), "red" if standing[name] else "")
        case "weight":
            return f"{standing['weight']:.2f}"
        case "address":
            return str(peer["address"])[:MAX_ADDRESS]
        case _:
            return UNKNOWN if peer.get(name) is None else str(peer[name])


def _standing(peer: Mapping[str, Any]) -> Mapping[str, Any]:
    return peer.get("standing") or {"is_host": False, "weight": 1.0, "strikes": 0, "stalls": 0}


def _linked(status: Status) -> int:
    return sum(peer["linked"] for peer in status["exchange"]["peers"])


def _version(number: int) -> str:
    return UNKNOWN if number < 0 else str(number)


def _cap(kib: float) -> str:
    return f" of {rate(kib * 1024)}" if kib else ""


def _figure(name: str, *pieces: Piece) -> Text:
    return line((f"{name:<{LABEL}}", "dim"), *pieces)
