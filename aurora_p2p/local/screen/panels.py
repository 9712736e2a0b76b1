"""Sections of a screen and their places: pure, from lines and a size to one renderable of exactly that size.

A section is a title and lines. Sections stand below each other in columns; when there is less room than they want, each
keeps `least` lines in the order given, later ones vanish first, the rest is shared, and what was cut is said ("... 12
more"). Sections of which the tail matters (logs) take what room is left.

Invariants: a screen has exactly `height` lines of at most `width` cells, and nothing in it is a control character:
`line` cleans every piece of text, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from aurora_p2p.local.output import clean

MAX_LINE = 400
"""Characters of one piece of text: twice the widest screen."""
GAP = 2
"""Cells between two columns."""

Piece = str | tuple[str, str]
"""Text, or (text, style): styles are rich's, and mean nothing that the text does not say as well."""


def line(*pieces: Piece) -> Text:
    """One line of a section from pieces of text; a piece is (text, style) or text alone."""
    parts = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    return Text.assemble(*((clean(text, MAX_LINE), style) for text, style in parts), no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True, slots=True)
class Section:
    """A titled block. least: lines it keeps when room is short. tail: the last lines matter, not the first."""

    title: str
    lines: Sequence[Text]
    least: int = 1
    tail: bool = False


def table(rows: Sequence[Sequence[Piece]], *, right: frozenset[int] = frozenset(), gap: int = 2) -> list[Text]:
    """Lines whose cells stand below each other; columns in `right` are flushed right. The first row is the heading."""
    texts = [[line(cell) for cell in row] for row in rows]
    widths = [max((text.cell_len for text in column), default=0) for column in zip(*texts, strict=True)]
    return [_row(row, widths, right, gap, "bold" if index == 0 else "") for index, row in enumerate(texts)]


def column_widths(width: int, shares: Sequence[int]) -> list[int]:
    """The widths of columns that share a screen in these proportions, with gaps between them."""
    inner, whole = width - GAP * (len(shares) - 1), sum(shares)
    ends = [inner * sum(shares[: index + 1]) // whole for index in range(len(shares))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def arrange(
    head: Sequence[Text], columns: Sequence[Sequence[Section]], widths: Sequence[int], width: int, height: int
) -> Group:
    """`head` over the columns, side by side (`widths` from column_widths). Returns exactly `height` lines."""
    top = [_cut(text, width) for text in list(head)[:height]]
    body = height - len(top)
    placed = [_stack(sections, column_width, body) for sections, column_width in zip(columns, widths, strict=True)]
    rows = [_beside([column[index] for column in placed], widths) for index in range(body)]
    return Group(*top, *rows)


def heights(sections: Sequence[Section], room: int) -> list[int]:
    """Lines that each section gets, its title included: 0 for one that is left out. Their sum is at most `room`."""
    given = [0] * len(sections)
    for index, section in enumerate(sections):
        wanted = min(1 + min(max(section.least, 1), len(section.lines)), room)
        if section.lines and wanted >= 2:  # a title alone says nothing
            given[index], room = wanted, room - wanted
    for tail in (False, True):  # what only fills the rest comes last
        wanting = [index for index, section in enumerate(sections) if given[index] and section.tail == tail]
        while room and wanting:  # one line each in turn: a long section must not starve the others
            wanting = [index for index in wanting if given[index] <= len(sections[index].lines)]
            for index in wanting[:room]:
                given[index] += 1
            room -= min(room, len(wanting))
    return given


def _stack(sections: Sequence[Section], width: int, height: int) -> list[Text]:
    rows: list[Text] = []
    for section, lines in zip(sections, heights(sections, height), strict=True):
        if lines:
            rows += [_title(section.title, width), *(_cut(text, width) for text in _chosen(section, lines - 1))]
    return [*rows, *([Text("")] * (height - len(rows)))]


def _chosen(section: Section, room: int) -> list[Text]:
    lines = list(section.lines)
    if len(lines) <= room:
        return lines
    if section.tail:
        return lines[-room:]
    return [*lines[: room - 1], line((f"... {len(lines) - room + 1} more", "dim"))] if room > 1 else lines[:room]


def _title(title: str, width: int) -> Text:
    text = line(("─ ", "dim"), (title, "bold"), (" ", ""), ("─" * width, "dim"))
    text.truncate(width, overflow="crop")
    return text


def _beside(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    row = Text(no_wrap=True, overflow="crop", end="")
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        last = index == len(cells) - 1
        part = cell.copy()
        if not last:
            part.truncate(width, pad=True)
        row.append_text(part)
        row.append("" if last else " " * GAP)
    row.rstrip()
    row.end = "\n"
    return row


def _row(cells: Sequence[Text], widths: Sequence[int], right: frozenset[int], gap: int, style: str) -> Text:
    row = Text(style=style, no_wrap=True, overflow="ellipsis")
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        padding = " " * (width - cell.cell_len)
        row.append_text(Text(padding) + cell if index in right else cell + Text(padding))
        row.append(" " * gap if index + 1 < len(cells) else "")
    row.rstrip()
    return row


def _cut(text: Text, width: int) -> Text:
    cut = text.copy()
    cut.truncate(max(width, 0), overflow="ellipsis")
    return cut
