"""Sections find their places: exactly the size asked for, the important ones first, nothing cut in silence."""

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from aurora_p2p.local.screen.driver import frame_lines
from aurora_p2p.local.screen.panels import Section, arrange, column_widths, heights, line, table


def drawn(head, columns, width, height):
    widths = column_widths(width, [1] * len(columns))
    return frame_lines(arrange(head, columns, widths, width, height), width, height, colour=False)


def numbered(title, count, **options):
    return Section(title, [line(f"{title}{index}") for index in range(count)], **options)


def test_with_room_every_line_is_shown_under_its_title():
    lines = drawn([line("head")], [[numbered("a", 2), numbered("b", 1)]], 12, 7)
    assert [text.rstrip() for text in lines] == ["head", "─ a ────────", "a0", "a1", "─ b ────────", "b0", ""]


def test_what_is_cut_is_said_and_a_log_keeps_its_end():
    lines = drawn([], [[numbered("a", 9, least=2), numbered("log", 9, tail=True)]], 14, 5)
    assert [text.rstrip() for text in lines] == ["─ a ──────────", "a0", "... 8 more", "─ log ────────", "log8"]


def test_columns_stand_side_by_side_and_never_run_into_each_other():
    lines = drawn([], [[numbered("wide" * 9, 1)], [numbered("b", 1)]], 22, 2)
    assert [text.rstrip() for text in lines] == ["─ widewide  ─ b ──────", "widewidew…  b0"]


def test_without_room_the_later_sections_vanish_first():
    assert heights([numbered("a", 5, least=2), numbered("b", 5, least=2), numbered("c", 5)], 6) == [3, 3, 0]
    assert heights([numbered("a", 5, least=9), numbered("b", 5, least=1)], 3) == [3, 0]
    assert heights([numbered("a", 0), numbered("b", 5)], 1) == [0, 0]


def test_a_long_section_does_not_starve_the_others():
    assert heights([numbered("a", 50), numbered("b", 3), numbered("log", 50, tail=True)], 20) == [14, 4, 2]


def test_cells_of_a_table_stand_below_each_other_and_numbers_end_together():
    rows = table([["peer", "rate"], ["漢字", "1"], ["b", "1000"]], right=frozenset({1}))
    assert [row.plain for row in rows] == ["peer  rate", "漢字     1", "b     1000"]


def test_nothing_that_steers_a_terminal_or_a_markup_survives():
    [text] = drawn([line("\x1b[31m[red]x[/red]\r\n\u202e:smile:")], [[]], 60, 1)
    assert text.rstrip() == "?[31m[red]x[/red]???:smile:"


TEXT = st.text(max_size=50)


@settings(deadline=None)
@given(
    st.lists(TEXT, max_size=3),
    st.lists(
        st.lists(
            st.builds(
                lambda title, texts, least, tail: Section(title, [line(text) for text in texts], least, tail),
                TEXT,
                st.lists(TEXT, max_size=12),
                st.integers(0, 6),
                st.booleans(),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(20, 120),
    st.integers(1, 40),
)
def test_any_sections_make_exactly_a_screen(head, columns, width, height):
    lines = drawn([line(text) for text in head], columns, width, height)
    assert len(lines) == height
    assert all(cell_len(text) <= width for text in lines)
    assert all(text.isprintable() for text in lines)


@settings(deadline=None)
@given(
    st.lists(st.builds(numbered, TEXT, st.integers(0, 30), least=st.integers(0, 9), tail=st.booleans())),
    st.integers(0, 60),
)
def test_heights_never_exceed_the_room_nor_leave_any_that_a_shown_section_wants(sections, room):
    given_heights = heights(sections, room)
    assert sum(given_heights) <= room
    shown = [(height, section) for height, section in zip(given_heights, sections, strict=True) if height]
    assert all(2 <= height <= 1 + len(section.lines) for height, section in shown)
    if sum(given_heights) < room:
        assert all(height == 1 + len(section.lines) for height, section in shown)
