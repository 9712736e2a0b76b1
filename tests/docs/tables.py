"""What every table of figures in the documents is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run_of(kept: dict[str, Any]) -> str:
    where = kept["machine"]
    return (
        f"`{kept['command']}`, {kept['date']}: {where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, "
        f"{where['system']}, Python {where['python']}."
    )
