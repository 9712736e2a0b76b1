"""The log of a daemon: what is in a line, who may read it, how large it grows, what never gets into it."""

import contextlib
import json
import logging
import os
import subprocess
import sys

import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import StoreError
from aurora_p2p.local import log as log_module
from aurora_p2p.local.log import EventLog, log_path, trim
from aurora_p2p.local.logview import files_of, follow, log_end, newest_lines, render_line
from aurora_p2p.local.output import TAIL, Output
from aurora_p2p.wire.ticket import Ticket


@pytest.fixture
def path(tmp_path):
    return log_path(tmp_path / "home", "node")


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_and_notes_are_json_lines_with_both_clocks_and_only_events_are_printed(path, capsys):
    with EventLog.open(path) as log:
        output = Output(as_json=False, log=log)
        output.event("joined", "joined the swarm", peer="12D3KooWpeer", step=4)
        output.note("receipts", lease="ab" * 16, step=4, accepted=[[0, 1], [0, 2]], refused={"lag": 2})
    started, joined, receipts, ended = records(path)
    assert (started["event"], ended["event"]) == ("started", "ended")
    assert started["pid"] == os.getpid()
    assert joined["time"].endswith("+00:00")
    assert started["boottime"] <= joined["boottime"] <= receipts["boottime"]
    assert (joined["text"], joined["peer"], joined["step"]) == ("joined the swarm", "12D3KooWpeer", 4)
    assert (receipts["accepted"], receipts["refused"]) == ([[0, 1], [0, 2]], {"lag": 2})
    assert capsys.readouterr().out == "joined the swarm\n"


def test_a_log_and_its_folder_are_private_whatever_the_umask(path):
    before = os.umask(0)
    try:
        with EventLog.open(path):
            pass
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_warnings_of_libraries_go_into_the_log_with_their_traceback_until_it_is_closed(path):
    library = logging.getLogger("some.library")
    with EventLog.open(path):
        library.info("not this")
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            library.warning("went %s", "wrong", exc_info=True)
    library.warning("after the end")
    [line] = [line for line in records(path) if line["event"] == "library"]
    assert (line["text"], line["logger"], line["level"]) == ("went wrong", "some.library", "warning")
    assert line["traceback"].endswith("ZeroDivisionError: integer division or modulo by zero\n")


def test_what_ended_a_daemon_is_its_last_line(path):
    with pytest.raises(BaseExceptionGroup), EventLog.open(path):
        raise BaseExceptionGroup("nursery", [BaseExceptionGroup("inner", [StoreError("the disk is gone")])])
    last = records(path)[-1]
    assert (last["event"], last["text"], last["kind"]) == ("ended", "the disk is gone", "StoreError")
    assert "test_log.py" in last["traceback"]
    assert render_line(json.dumps(last)).endswith("ended        the disk is gone  kind=StoreError")


def test_a_log_is_rotated_by_size_and_only_so_many_files_are_kept_all_private(path, monkeypatch):
    monkeypatch.setattr(log_module, "LOG_BYTES", 2000)
    with EventLog.open(path) as log:
        for number in range(200):
            log.write("step", step=number)
    files = files_of(path)
    assert len(files) == log_module.LOG_FILES
    assert all(file.stat().st_size <= 2000 for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    steps = [json.loads(line).get("step") for file in files for line in file.read_text().splitlines()][:-1]
    assert steps == list(range(steps[0], 200)), "the newest lines, in order, without a gap"


def test_a_disk_that_takes_no_more_costs_lines_and_never_the_daemon(path, monkeypatch, capsys):
    class Full:
        def write(self, _text):
            raise OSError(28, "No space left on device")

        def flush(self):
            pass

        def close(self):
            pass

        def seek(self, *_):
            return 0

        def tell(self):
            return 0

    with EventLog.open(path) as log:
        with contextlib.closing(log._handler.stream):
            log._handler.stream = Full()
        Output(as_json=False, log=log).event("joined", "joined")
        assert log.lost == 1
    assert capsys.readouterr() == ("joined\n", "")


def test_a_log_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write the log"):
        EventLog.open(log_path(tmp_path, "node"))


def test_no_key_seed_ticket_token_or_prompt_reaches_the_log(path):
    identity = Identity.generate()
    ticket = str(Ticket(identity.peer, hosts=("/ip4/127.0.0.1/tcp/1/p2p/" + identity.peer,)))
    with EventLog.open(path) as log:
        output = Output(as_json=True, log=log)
        output.event("ready", f"join with {ticket}", ticket=ticket, nested={"ticket": [ticket]})
        output.note("keys", seed=identity.seed, key=identity, secret="0123456789abcdef", token="hunter2hunter2")
        output.note("lease", prompts=[[11111, 22222]], completion="what the model said", prompt=3, tokens=512)
        logging.getLogger("http").warning("GET /?token=hunter2hunter2 password: hunter2hunter2 in %s", ticket)
    text = path.read_text()
    for secret in (ticket, identity.seed.hex(), "0123456789abcdef", "hunter2", "11111", "what the model said"):
        assert secret not in text
    assert identity.peer in text, "an identity shows as its public id"
    lease = records(path)[3]
    assert (lease["prompt"], lease["tokens"]) == (3, 512), "indices and counts are no secrets"


def test_the_tail_keeps_the_last_texts_safe_for_a_terminal(capsys):
    output = Output(as_json=False)
    for number in range(TAIL + 5):
        output.event("step", f"step {number}\x1b[2J")
    assert len(output.tail(TAIL * 2)) == TAIL
    assert output.tail(2) == [f"step {TAIL + 3}?[2J", f"step {TAIL + 4}?[2J"]
    assert output.tail(0) == []


def test_while_a_screen_is_up_nothing_is_printed_but_all_is_logged(path, capsys):
    root = logging.getLogger()
    stream = logging.StreamHandler()
    root.addHandler(stream)
    try:
        with EventLog.open(path) as log:
            output = Output(as_json=False, log=log)
            with output.quiet():
                output.event("joined", "joined")
                logging.getLogger("library").warning("hidden")
            output.event("left", "left")
            assert stream in root.handlers
    finally:
        root.removeHandler(stream)
    assert capsys.readouterr() == ("left\n", "")
    assert [line["event"] for line in records(path)][1:-1] == ["joined", "library", "left"]
    assert output.tail(5) == ["joined", "left"]


# ---- the children's output


def test_a_childs_output_is_cut_to_its_last_lines_while_the_child_goes_on_appending(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "CHILD_LOG_BYTES", 4000)
    monkeypatch.setattr(log_module, "CHILD_LOG_KEPT", 1000)
    path = tmp_path / "engine.log"
    trim(path)
    assert not path.exists()
    with path.open("ab", buffering=0) as child:
        for number in range(500):
            child.write(b"line %d\n" % number)
        trim(path)
        child.write(b"and on\n")
    lines = path.read_text().splitlines()
    assert lines[-2:] == ["line 499", "and on"]
    assert all(line.startswith("line ") for line in lines[:-1]), "no torn first line"
    assert path.stat().st_size <= 1010
    trim(path)
    assert path.read_text().splitlines() == lines


# ---- reading it back


def test_the_newest_lines_come_from_as_many_files_as_are_needed(path, monkeypatch):
    monkeypatch.setattr(log_module, "LOG_BYTES", 1500)
    with EventLog.open(path) as log:
        for number in range(60):
            log.write("step", step=number)
    end = log_end(path)
    steps = [json.loads(line).get("step") for line in newest_lines(path, 31, end)]
    assert steps == [*range(30, 60), None]
    assert len(newest_lines(path, 10_000, end)) == sum(len(file.read_text().splitlines()) for file in files_of(path))
    assert newest_lines(path, 0, end) == []


def test_a_line_reads_as_local_time_event_text_and_fields_and_steers_no_terminal(monkeypatch):
    line = {"time": "2026-05-01T10:00:00.123+00:00", "boottime": 1.0, "event": "banned", "text": "banned \x1b[31m it"}
    shown = render_line(json.dumps(line | {"peer": "12D3", "refused": {"lag": 2}}))
    assert shown.endswith('banned       banned ?[31m it  peer=12D3 refused={"lag":2}')
    assert shown[:10] in ("2026-04-30", "2026-05-01", "2026-05-02")
    for torn in ('{"time": "20', "[1]", "{}", "Traceback \x1b[0m"):
        assert render_line(torn).isprintable()


def test_following_goes_on_over_a_rotation(path, monkeypatch):
    monkeypatch.setattr(log_module, "LOG_BYTES", 600)
    with EventLog.open(path) as log:
        lines = follow(path, 0)
        assert json.loads(next(lines))["event"] == "started"
        for number in range(20):
            log.write("step", step=number)
            assert json.loads(next(lines))["step"] == number
        lines.close()
    assert len(files_of(path)) > 2


def test_following_waits_for_a_log_that_is_not_there_yet(path):
    lines = follow(path, 0)
    code = (
        "import sys, pathlib\nfrom aurora_p2p.local.log import EventLog\n"
        "with EventLog.open(pathlib.Path(sys.argv[1])):\n    pass"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as child:
        assert json.loads(next(lines))["pid"] == child.pid
    lines.close()
