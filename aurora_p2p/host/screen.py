"""A host's screen: a pure render of its status, and the view that `run` and `aurora-host tui` show.

    render_screen(status, width, height)   40 to 200 columns; everything it says in colour it says in words as well
    plain_line(status)                     the same in one line, for pipes and TERM=dumb
    show_screen(commands, output)          in the host, until cancelled (terminal, pipe or --json: it decides)
    attach_screen(home)                    `aurora-host tui`: over the control socket of a running host

What a narrow or low terminal has no room for is left out from the right and from below, the log first.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from aurora_p2p.host.screen_nodes import active, nodes_table, nodes_title, version
from aurora_p2p.host.why import why
from aurora_p2p.local.control import Handler, socket_path
from aurora_p2p.local.output import Output
from aurora_p2p.local.screen.figures import UNKNOWN, age, count, counted, rate, share, size, sparkline
from aurora_p2p.local.screen.panels import Piece, Section, arrange, column_widths, line

if TYPE_CHECKING:
    from rich.console import Group

    from aurora_p2p.local.screen.session import View

Status = Mapping[str, Any]

TWO_COLUMNS = 110
"""Columns from which the nodes stand beside the figures instead of below them."""
SHARES = (4, 5)
LABEL = 11
"""Width of the names before figures."""
BAR, LEAST_BAR = 16, 5
"""Cells of a bar beside a figure, on a wide and on a narrow screen."""
BESIDE_SAMPLES, BESIDE_NODES = 36, 18
"""Cells of the figures beside bars."""


def render_screen(status: Status, width: int, height: int) -> Group:
    """Exactly `height` lines of at most `width` cells."""
    widths = column_widths(width, SHARES) if width >= TWO_COLUMNS else [width]
    left, right = widths[0], widths[-1]
    run = [
        Section("why", _why(status, left), least=3),
        Section(f"version {version(status['version'])}", _pipeline(status, left), least=4),
        Section("samples", _samples(status, left), least=1),
        Section("trainer", _trainer(status, left), least=3),
    ]
    nodes = [Section(nodes_title(status), nodes_table(status, right), least=3)]
    side = [Section("host", _host(status), least=1), Section("refused", _refused(status), least=1)]
    log = [Section("log", [line(text) for text in status.get("log") or ()], tail=True)]
    columns = [run + side, nodes + log] if len(widths) > 1 else [run + nodes + side + log]
    return arrange(_head(status), columns, widths, width, height)


def plain_line(status: Status) -> str:
    """What changes when something happens; ages and rates are left out, for they always change."""
    step = next((step for step in status["work"]["steps"] if step["admitted"] < step["total"]), None)
    refused = sum(status["work"]["refused"].values())
    parts = [
        f"version {version(status['version'])}",
        _mood(status)[0],
        f"{active(status)} of {len(status['nodes'])} nodes active",
        f"step {step['step']}: {step['admitted']}/{step['total']} samples" if step else "no step is open",
        f"{sum(node['admitted'] for node in status['work']['nodes'])} admitted"
        + (f", {refused} refused" if refused else ""),
    ]
    return "  ".join(parts)


async def show_screen(commands: Mapping[str, Handler], output: Output, *, plain: bool = False) -> None:
    """Show this host's screen until cancelled; with --json nothing. commands: those of the control socket."""
    from aurora_p2p.local.screen.session import show

    await show(_view(), commands, output, plain=plain)


def attach_screen(home: Path) -> None:
    """Attach to the host of this home. Raises UnreachableError when none answers."""
    from aurora_p2p.local.screen.session import attach

    attach(_view(), socket_path(home, "control"))


def _view() -> View:
    from aurora_p2p.local.screen.session import View

    return View(render_screen, plain_line, "the host has stopped")


# ---- head and why


def _head(status: Status) -> list[Text]:
    word, style = _mood(status)
    return [
        line(
            ("aurora-host", "bold"),
            f"  version {version(status['version'])}  ",
            (word, style),
            f"  up {age(status.get('uptime_seconds'))}",
        ),
        line(f"swarm {status['swarm']}"),
    ]


def _mood(status: Status) -> tuple[str, str]:
    """What the host is doing, in a word or two."""
    if (status.get("ledger") or {}).get("waits"):
        return "disk full", "bold red"
    if status.get("equivocation"):
        return "second publisher", "bold red"
    if status.get("draining"):
        return "draining", "bold yellow"
    if status.get("paused"):
        return "paused", "bold yellow"
    if status["publishing"]:
        return "publishing", "bold green"
    if any(step["leased"] for step in status["work"]["steps"]):
        return "generating", "bold green"
    return "waiting", "bold yellow"


def _why(status: Status, width: int) -> list[Text]:
    lines: list[Text] = []
    for sentence in why({**status, "ticket": ""}):  # a ticket in pieces cannot be copied
        for index, part in enumerate(textwrap.wrap(sentence, max(width - 2, 8))):
            lines.append(line("- " if index == 0 else "  ", part))
    return lines


# ---- the run


def _pipeline(status: Status, width: int) -> list[Text]:
    """Extract, spread, staged, committed: how far the newest version is."""
    pipeline, cells = status["pipeline"], _cells(width, BESIDE_NODES)
    extract, nodes = pipeline["extract"], pipeline["nodes"]
    if extract:
        share_done = share(extract["bytes"], extract["bound"])
        lines = [
            _figure(
                "extract",
                _bar([extract["bytes"]], extract["bound"], cells),
                f" version {extract['version']}: {size(extract['bytes'])} in {age(extract['seconds'])}",
                f", at least {share_done}",
            )
        ]
    else:
        took = pipeline["extract_seconds"]
        seconds = f" in {took:.1f} s" if took is not None else ""
        what = f"{pipeline['kind']} of {size(pipeline['bytes'])}{seconds}, {counted(pipeline['segments'], 'segment')}"
        lines = [_figure("extract", what if pipeline["kind"] else "nothing yet")]
    spread = pipeline["spread_percent"]
    lines.append(_figure("spread", _bar([spread], 100, cells), f" {pipeline['complete']}/{nodes} nodes, {spread} %"))
    for name in ("staged", "committed"):
        lines.append(_figure(name, _bar([pipeline[name]], nodes, cells), f" {pipeline[name]}/{nodes} nodes"))
    lines.append(_figure("HEAD", f"seq {status['seq']}  generation {status['generation']}  {_published(status)}"))
    return lines


def _published(status: Status) -> str:
    seconds = status.get("head_age_seconds")
    return f"{age(seconds)} ago" if seconds is not None else "before this start"


def _samples(status: Status, width: int) -> list[Text]:
    """Each step's samples: admitted, leased, open."""
    cells = _cells(width, BESIDE_SAMPLES)
    return [
        _figure(
            f"step {step['step']}",
            _bar([step["admitted"], step["leased"]], step["total"], cells),
            f" {step['admitted']}/{step['total']} admitted, {step['leased']} leased, {step['open']} open",
        )
        for step in status["work"]["steps"]
    ] or [line("no step is submitted")]


def _trainer(status: Status, width: int) -> list[Text]:
    trainer, history = status["trainer"], status["history"]
    room = max(width - LABEL - 10, 0)
    connected = f"{trainer['connections']} connected" if trainer["connections"] else "not connected"
    waiting = trainer["waits_for"]
    text = f", waits for step {waiting} for {age(trainer['waiting_seconds'])}" if waiting is not None else ""
    lines = [_figure("trainer", connected + text)]
    if not history:
        return lines
    last = history[-1]
    rewards, speeds = [step["reward"] for step in history], [step["tokens_per_second"] for step in history]
    shown = UNKNOWN if last["reward"] is None else f"{last['reward']:.3g}"
    wait = trainer["wait_share"]
    waited = UNKNOWN if wait is None else share(wait, 1.0)
    lines += [
        _figure("reward", (f"{shown:>8}", "bold"), " ", sparkline(_lifted(rewards), room)),
        _figure("tokens/s", (f"{count(last['tokens_per_second']):>8}", "bold"), " ", sparkline(speeds, room)),
        _figure("wait share", (f"{waited:>8}", "bold"), " ", sparkline([step["wait_share"] for step in history], room)),
        _figure("last step", f"{last['step']} took {last['seconds']:.1f} s, {age(last['age_seconds'])} ago"),
        _figure(
            "",
            f"waited {last['waited_seconds']:.1f}, trained {last['trained_seconds']:.1f}, "
            f"published {last['published_seconds']:.1f}",
        ),
    ]
    return lines


def _lifted(values: list[float | None]) -> list[float | None]:
    """Values whose lowest is not below zero: what a sparkline can show."""
    low = min((value for value in values if value is not None), default=0.0)
    return [None if value is None else value - min(low, 0.0) for value in values]


def _refused(status: Status) -> list[Text]:
    refused = sorted(status["work"]["refused"].items(), key=lambda pair: -pair[1])
    return [_figure(str(number), (reason.replace("_", " "), "yellow")) for reason, number in refused]


def _host(status: Status) -> list[Text]:
    exchange, disk, ledger = status["exchange"], status.get("disk") or {}, status.get("ledger") or {}
    up, down = exchange.get("up_rate"), exchange.get("down_rate")
    lines = [
        _figure("rate", f"up {rate(up)}{_cap(exchange['up_kib'])}  down {rate(down)}{_cap(exchange['down_kib'])}"),
        _figure("sent", f"{size(exchange['sent_bytes'])}, {_copies(status)} copies of what was published"),
    ]
    if disk:
        lines.append(
            _figure("disk", f"{size(disk['used'])} of {size(disk['quota'])} in use, {size(disk['free'])} free")
        )
    if ledger:
        waits = (f"  {ledger['waits']}", "bold red") if ledger["waits"] else ""
        lines.append(_figure("ledger", f"{1000 * ledger['last_seconds']:.1f} ms to disk", waits))
    return lines


def _copies(status: Status) -> str:
    published = status["exchange"]["published"]
    whole = published["artifact_bytes"]
    return f"{published['sent_bytes'] / whole:.1f}" if whole else UNKNOWN


# ---- figures


def _cap(kib: float) -> str:
    return f" of {rate(kib * 1024)}" if kib else ""


def _cells(width: int, beside: int) -> int:
    return max(min(BAR, width - LABEL - beside), LEAST_BAR)


def _bar(parts: list[int], whole: int, cells: int) -> str:
    """Parts of a whole, in different letters; a part that is not complete never fills its last cell."""
    if whole <= 0:
        return "·" * cells
    ends, done = [], 0
    for part in parts:
        done = min(done + part, whole)
        ends.append(cells * done // whole)
    text = ""
    for end, letter in zip(ends, "█▒", strict=False):
        text += letter * (end - len(text))
    return text + "·" * (cells - len(text))


def _figure(name: str, *pieces: Piece) -> Text:
    return line((f"{name:<{LABEL}}", "dim"), *pieces)
