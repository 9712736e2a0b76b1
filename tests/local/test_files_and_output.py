"""Durable small files, and what a terminal or a script is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.errors import StoreError
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.files import write_durably
from aurora_p2p.local.output import Output, clean


def test_a_file_is_replaced_whole_and_private(tmp_path):
    path = tmp_path / "charter"
    write_durably(path, b"old and longer")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["charter"]


def test_a_file_whose_replacement_fails_is_left_as_it_was(tmp_path):
    path = tmp_path / "charter"
    write_durably(path, b"old")
    (tmp_path / "charter.new").mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*charter: Is a directory"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_below_something_that_is_no_folder_is_a_store_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="Not a directory"):
        write_durably(tmp_path / "file" / "charter", b"")


def test_the_clock_goes_forward():
    assert 0 < boottime() <= boottime()


@given(st.text())
def test_no_text_of_a_peer_steers_a_terminal(text):
    shown = clean(text)
    assert len(shown) <= 200
    assert shown.isprintable()


def test_escapes_line_breaks_and_direction_marks_become_question_marks():
    assert clean("a\x1b[2Jb\r\nc\u202ed") == "a?[2Jb??c?d"


def test_a_script_gets_one_object_a_line(capsys):
    output = Output(as_json=True)
    output.event("joined", "node joined\nas two lines", peer="12D3")
    [line] = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert record.pop("seconds") >= 0
    assert record == {"event": "joined", "peer": "12D3"}


def test_a_person_gets_the_text_cleaned(capsys):
    output = Output(as_json=False)
    output.event("joined", "node \x1b[31m joined", peer="12D3")
    with output.live() as show:
        show("generating", 1, 2)  # no terminal here: silent
    assert capsys.readouterr().out == "node ?[31m joined\n"
