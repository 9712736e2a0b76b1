"""Plans of faults: how they are read, when a rule acts, and that the names are those of the sources."""

from __future__ import annotations

import ast
import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

import aurora_node
import aurora_p2p
from aurora_p2p.errors import UsageError
from aurora_p2p.local import faults as armed_faults
from aurora_p2p.local.faults import MAX_PLAN, VARIABLE, Armed, Plan, process_kind, read_plan
from aurora_p2p.testing.faults import (
    POINTS,
    corrupt,
    cut,
    delay,
    disk_error,
    disk_full,
    fail,
    kill,
    marks_in,
    plan,
    refuse,
    release,
    slow,
    torn,
)


def armed(*rules, kind="node", marks=""):
    return Armed(Plan(tuple(rules), str(marks)), kind)


def run_script(script, environment, program="trainer.py"):
    """Run a script in a real process."""
    text = "import sys; from pathlib import Path; from aurora_p2p.local import faults\n" + script
    return subprocess.run(
        [sys.executable, "-c", text, program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def reached_in(path):
    """The names of a source file's calls of `reach`; asserts that each is a literal."""
    names = []
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == "reach" and path.name != "faults.py":
            (argument,) = call.args
            assert isinstance(argument, ast.Constant), f"{path}:{call.lineno}: a point has a literal name"
            names.append(argument.value)
    return names


def test_every_point_in_the_sources_is_named_and_every_name_is_a_point_in_the_sources():
    folders = [Path(aurora_p2p.__file__).parent, Path(aurora_node.__file__).parent]
    reached = {name for folder in folders for path in folder.rglob("*.py") for name in reached_in(path)}
    assert reached == POINTS.keys()
    assert all(meaning and meaning == meaning.strip() for meaning in POINTS.values())


def test_an_unarmed_process_does_nothing_and_an_empty_variable_arms_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(armed_faults, "_armed", None)
    armed_faults.arm({VARIABLE: ""})
    armed_faults.arm({})
    assert armed_faults._armed is None
    armed_faults.reach("ledger.written")
    armed_faults.disk("write", tmp_path)
    armed_faults.wire("in", memoryview(bytearray(4)))
    armed_faults.connecting()


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"rules": [{"kind": "point", "at": "x"}]}',
        '{"rules": [{"kind": "point", "at": "x", "action": "explode"}]}',
        '{"rules": [{"kind": "point", "at": "x", "action": "kill", "hit": -1}]}',
        '{"rules": [], "more": 1}',
        '{"rules": [' + " " * MAX_PLAN + "]}",
        '{"rules": [{"kind": "point", "at": "x", "action": "delay", "seconds": 1e9}]}',
    ],
)
def test_a_plan_that_cannot_be_read_is_a_usage_error_and_is_never_ignored(text):
    with pytest.raises(UsageError, match=VARIABLE):
        read_plan(text)


def test_a_plan_comes_back_from_the_environment_as_it_was_built(tmp_path):
    rules = plan(
        kill("results.durable", hit=3),
        delay("bulk.sending", 0.5, process="bulk"),
        fail("ledger.writing", "EROFS"),
        disk_full("write", "*/body", hit=0),
        torn("*/pages"),
        cut("in", 4096),
        slow("out", 0.1),
        corrupt(100),
        refuse(after=2),
        process="host",
    )
    (text,) = rules.environment(tmp_path).values()
    assert read_plan(text) == Plan(rules.rules, str(tmp_path))
    assert [rule.process for rule in rules.rules[:2]] == ["host", "bulk"]


def test_an_unknown_point_cannot_be_planned():
    with pytest.raises(UsageError, match="no crash point 'ledger.writen'"):
        kill("ledger.writen")


def test_a_rule_acts_at_its_hit_and_only_then():
    process = armed(fail("ledger.writing", hit=3))
    process.reach("ledger.writing")
    process.reach("ledger.written")
    process.reach("ledger.writing")
    with pytest.raises(OSError, match="ledger.writing") as raised:
        process.reach("ledger.writing")
    assert raised.value.errno == errno.EIO
    process.reach("ledger.writing")


def test_a_rule_is_for_its_kind_of_process_alone():
    rule = fail("ledger.writing", process="host")
    assert not armed(rule, kind="node").concerned
    armed(rule, kind="node").reach("ledger.writing")
    with pytest.raises(OSError, match="ledger"):
        armed(rule, kind="host").reach("ledger.writing")


def test_with_marks_a_rule_acts_in_one_process_of_all_and_says_in_which(tmp_path):
    rule = fail("engine.committing", process="engine")
    first, second = (armed(rule, kind="engine", marks=tmp_path) for _ in range(2))
    assert marks_in(tmp_path) == []
    with pytest.raises(OSError, match="engine"):
        first.reach("engine.committing")
    second.reach("engine.committing")
    (mark,) = marks_in(tmp_path)
    assert (mark.rule, mark.process) == (0, "engine")


def test_a_gated_rule_is_at_rest_until_it_is_released_and_counts_from_there(tmp_path):
    (text,) = plan(fail("file.synced"), fail("file.synced", hit=2)).environment(tmp_path, gated=True).values()
    process = Armed(read_plan(text), "node")
    for _ in range(3):
        process.reach("file.synced")
    release(tmp_path, 1)
    process.reach("file.synced")
    assert marks_in(tmp_path) == []
    with pytest.raises(OSError, match="file"):
        process.reach("file.synced")
    assert [mark.rule for mark in marks_in(tmp_path)] == [1]


def test_a_full_disk_refuses_the_paths_that_match_each_time():
    process = armed(disk_full("write", "*/body", hit=0), disk_error("rename", "*", hit=2))
    for _ in range(2):
        with pytest.raises(OSError, match="body") as raised:
            process.disk("write", Path("/a/body"), b"1234", None)
        assert raised.value.errno == errno.ENOSPC
    process.disk("write", Path("/a/pages"), b"1234", None)
    process.disk("rename", Path("/a/pages"), b"", None)
    with pytest.raises(OSError, match="pages"):
        process.disk("rename", Path("/a/pages"), b"", None)


def test_a_connection_is_cut_where_its_byte_goes_and_once():
    process = armed(cut("in", 10), kind="bulk")
    process.wire("in", memoryview(bytearray(10)))
    process.wire("out", memoryview(bytearray(10)))
    with pytest.raises(ConnectionResetError):
        process.wire("in", memoryview(bytearray(1)))
    process.wire("in", memoryview(bytearray(100)))


def test_one_byte_is_corrupted_in_place_and_what_is_sent_never():
    process = armed(corrupt(10), kind="bulk")
    pieces = [bytearray(8) for _ in range(4)]
    for piece in pieces:
        process.wire("in", memoryview(piece))
        process.wire("out", memoryview(bytes(piece)))
    assert [sum(byte != 0 for byte in piece) for piece in pieces] == [0, 1, 0, 0]


def test_connects_are_refused_from_a_given_one_on():
    process = armed(refuse(after=1), kind="bulk")
    one = memoryview(b"\0")
    process.wire("connect", one)
    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            process.wire("connect", one)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["python", "/usr/bin/aurora-node", "join"], "node"),
        (["python", "/opt/bin/aurora-host", "run"], "host"),
        (["python", "aurora-bootstrap"], "bootstrap"),
        (["python", "-m", "aurora_p2p.net.bulk", "--fd", "3"], "bulk"),
        (["python", "-m", "aurora_p2p.engine.worker", "--fd", "3"], "engine"),
        (["torchrun", "train.py"], "trainer"),
        (["python"], "trainer"),
    ],
)
def test_the_command_line_tells_the_kind_of_a_process(words, kind):
    assert process_kind(words) == kind


@pytest.mark.slow
def test_a_killed_process_dies_at_once_and_its_successor_lives(tmp_path):
    environment = plan(kill("file.synced", hit=2)).environment(tmp_path)
    script = "faults.arm(); [faults.reach('file.synced') for _ in range(3)]; print('alive')"
    first, second = run_script(script, environment), run_script(script, environment)
    assert (first.returncode, first.stdout) == (-9, "")
    assert first.stderr.startswith(f"warning: {VARIABLE} is set: this trainer process")
    assert (second.returncode, second.stdout) == (0, "alive\n")


@pytest.mark.slow
def test_a_torn_write_leaves_the_first_half_and_no_small_file_is_ever_half(tmp_path):
    script = (
        "faults.arm(); from aurora_p2p.local.files import write_durably; "
        f"write_durably(Path({str(tmp_path / 'kept')!r}), b'n' * 1000)"
    )
    (tmp_path / "kept").write_bytes(b"old")
    assert run_script(script, plan(torn("*/kept")).environment()).returncode == -9
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert (tmp_path / "kept.new").read_bytes() == b"n" * 500
    assert run_script(script, {}).returncode == 0
    assert (tmp_path / "kept").read_bytes() == b"n" * 1000


@pytest.mark.slow
def test_a_program_with_a_bad_plan_ends_with_a_usage_error():
    program = Path(sys.executable).with_name("aurora-node")
    done = subprocess.run(
        [program, "status"],
        env={VARIABLE: json.dumps({"rules": 1})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == UsageError.exit_status
    assert done.stderr.startswith(f"error: {VARIABLE} holds no plan")
