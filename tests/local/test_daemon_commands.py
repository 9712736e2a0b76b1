"""The commands that ask a running daemon: what is asked, and what a person and a script see."""

import json
import os
import subprocess
import sys

import pytest
import trio
import trio.testing

from aurora_node.cli import main as node_main
from aurora_p2p.errors import UsageError
from aurora_p2p.host.cli import main as host_main
from aurora_p2p.local.cli import Synopsis, build_parser, run_cli, run_command
from aurora_p2p.local.commands.daemon import daemon_commands
from aurora_p2p.local.commands.program import Daemon
from aurora_p2p.local.control import serve_control, socket_path

NEEDS_A_DAEMON = ["status", "why", "tui", "pause", "resume", "caps", "quit"]
DAEMON = Daemon(
    program="aurora-test",
    render=lambda status: f"version {status['version']}",
    why=lambda status: [f"waits for version {status['version'] + 1}", "peer \x1b[2J is slow"],
    attach=lambda home: print(f"a screen for {home.name}"),
    paused="paused",
    resumed="resumed",
)


def main(words):
    table = daemon_commands(DAEMON, "test.toml")
    run_cli(lambda: run_command(build_parser(Synopsis("aurora-test", "", ""), table).parse_args(words), None))


@pytest.fixture
def asked(tmp_path, capsys):
    """Runs commands against a daemon whose answers are given; returns (statuses, what was printed, requests)."""

    def run(answers, *commands):
        requests = []

        def answering(answer):
            async def handle(request):
                requests.append(dict(request))
                if isinstance(answer, Exception):
                    raise answer
                return answer

            return handle

        async def serve():
            statuses = []
            async with trio.open_nursery() as nursery:
                handlers = {name: answering(answer) for name, answer in answers.items()}
                nursery.start_soon(serve_control, socket_path(tmp_path, "control"), handlers)
                await trio.testing.wait_all_tasks_blocked()
                for words in commands:
                    with pytest.raises(SystemExit) as ended:
                        await trio.to_thread.run_sync(main, [*words, "--home", str(tmp_path)])
                    statuses.append(ended.value.code)
                nursery.cancel_scope.cancel()
            return statuses

        return trio.run(serve), capsys.readouterr(), requests

    return run


def test_status_and_why_are_read_from_the_same_snapshot_and_cleaned_for_a_terminal(asked):
    commands = (["status"], ["status", "--json"], ["why"], ["why", "--json"], ["tui"])
    statuses, said, requests = asked({"status": {"version": 4}}, *commands)
    assert statuses == [0] * 5
    text, as_json, first, second, why, screen = said.out.splitlines()
    assert (text, json.loads(as_json)) == ("version 4", {"version": 4})
    assert (first, second) == ("waits for version 5", "peer ?[2J is slow")
    assert json.loads(why) == {"why": [first, second]}
    assert screen.startswith("a screen for ")
    assert [request["command"] for request in requests] == ["status"] * 5


def test_pause_and_resume_say_what_the_daemon_says_or_what_they_do(asked):
    answers = {"pause": {"text": "paused, also after a restart"}, "resume": {}}
    _, said, requests = asked(answers, ["pause"], ["resume"], ["pause", "--json"])
    assert said.out.splitlines()[:2] == ["paused, also after a restart", "resumed"]
    assert json.loads(said.out.splitlines()[2]) == answers["pause"]
    assert [request["command"] for request in requests] == ["pause", "resume", "pause"]


def test_caps_are_shown_or_changed_and_the_lasting_place_is_named(asked):
    answers = {"caps": {"up_kib": 5.0, "down_kib": 0.0}}
    _, said, requests = asked(answers, ["caps"], ["caps", "--up-kib", "5"], ["caps", "--json"])
    shown, changed = said.out.splitlines()[:2], said.out.splitlines()[2:5]
    assert shown == changed[:2] == ["up: 5 KiB/s", "down: no cap"]
    assert changed[2] == "until the daemon ends; for good: up_kib_per_second, down_kib_per_second in test.toml"
    assert json.loads(said.out.splitlines()[5]) == answers["caps"]
    assert [request.get("up_kib") for request in requests] == [None, 5.0, None]


def test_a_refusal_of_the_daemon_is_one_line_and_its_hint(asked):
    refusal = UsageError("a cap is 0 or more", hint="0 for none")
    statuses, said, _ = asked({"caps": refusal}, ["caps", "--up-kib", "-1"])
    assert statuses == [1]
    assert said.err == "error: a cap is 0 or more\nhint:  0 for none\n"


def test_quit_waits_until_the_process_is_gone(tmp_path, capsys):
    code = (
        "import sys, trio\nfrom pathlib import Path\nfrom aurora_p2p.local.control import serve_control, socket_path\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        async def leave(request):\n"
        "            nursery.cancel_scope.deadline = trio.current_time() + 0.1\n"
        "            return {}\n"
        "        path = socket_path(Path(sys.argv[1]), 'control')\n"
        "        await nursery.start(serve_control, path, {'quit': leave})\n"
        "        print('ready', flush=True)\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout.readline() == b"ready\n"
        with pytest.raises(SystemExit) as ended:
            main(["quit", "--home", str(tmp_path)])
        assert ended.value.code == 0
        assert os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, "it has ended"
    assert "drained" in capsys.readouterr().out


@pytest.mark.parametrize("program", [node_main, host_main])
@pytest.mark.parametrize("command", NEEDS_A_DAEMON)
def test_without_a_daemon_each_ends_with_69_and_a_hint(program, command, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        program([command, "--home", str(tmp_path)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (69, "")
    assert said.err.splitlines()[1:] == ["hint:  is it running? is --home the same?"]


@pytest.mark.parametrize("program", ["node", "host", "bootstrap"])
def test_every_command_has_its_own_help_in_whole_sentences(program):
    module = {"node": "aurora_node", "host": "aurora_p2p.host", "bootstrap": "aurora_bootstrap"}[program]
    table = __import__(f"{module}.cli", fromlist=["TABLE"]).TABLE
    assert len({row.name for row in table}) == len(table)
    for row in table:
        about = row.about or f"{row.help[0].upper()}{row.help[1:]}."
        assert about[0].isupper()
        assert about.endswith(".")
        assert all(len(line) <= 100 for line in [*about.splitlines(), *row.examples.splitlines()])
