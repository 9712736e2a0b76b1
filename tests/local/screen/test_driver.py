"""The drivers: what is printed where there is no terminal, and a real pseudo-terminal that is always restored."""

import os
import re
import signal
import sys
import termios
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from rich.text import Text
from trio.testing import MockClock

from aurora_p2p.errors import UsageError
from aurora_p2p.local.control import serve_control
from aurora_p2p.local.output import Output
from aurora_p2p.local.screen.driver import PLAIN_SECONDS, frame_lines, run_plain
from aurora_p2p.local.screen.session import View, control_keys, show, typed_caps
from aurora_p2p.local.screen.terminal import can_draw
from tests.local.screen.pseudo import FRAME, LEFT, SHOWN, WAIT_SECONDS, open_terminal

# ---- without a terminal


def test_a_frame_is_cut_and_filled_to_the_size_asked_for():
    assert frame_lines(Text("abcdef\nx\ny\nz"), 3, 2, colour=False) == ["abc", "x"]
    assert frame_lines(Text("a"), 3, 3, colour=False) == ["a", "", ""]


def test_a_plain_line_is_written_when_it_differs_and_never_more_often_than_it_may():
    states, written = iter(["a", "a", "b", "b\x1b[2J"]), []

    async def main():
        start = trio.current_time()

        async def look():
            state = next(states, None)
            if state is None:
                scope.cancel()
                await trio.lowlevel.checkpoint()
            return {"state": state}

        with trio.CancelScope() as scope:
            await run_plain(
                look,
                lambda status: status["state"],
                lambda text: written.append((trio.current_time() - start, text)),
            )

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert written == [(0, "a"), (2 * PLAIN_SECONDS, "b"), (3 * PLAIN_SECONDS, "b?[2J")]


class Terminalish:
    encoding = "utf-8"

    def __init__(self, tty):
        self._tty = tty

    def isatty(self):
        return self._tty


@pytest.mark.parametrize(
    ("environ", "tty", "asked", "drawn"),
    [
        ({"TERM": "xterm"}, True, False, True),
        ({"TERM": "xterm"}, False, True, False),
        ({"TERM": "dumb"}, True, True, False),
        ({}, True, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False, True),
    ],
)
def test_a_screen_needs_a_terminal_that_can_show_one(environ, tty, asked, drawn, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminalish(tty))
    assert can_draw(environ, asked=asked) == drawn


def test_a_terminal_without_unicode_gets_plain_lines(monkeypatch):
    latin = Terminalish(True)
    latin.encoding = "iso8859-1"
    monkeypatch.setattr(sys, "stdout", latin)
    assert not can_draw({"TERM": "xterm"})


VIEW = View(lambda status, width, height: Text(status["state"]), lambda status: f"state {status['state']}", "stopped")


def test_beside_json_events_nothing_is_shown(capsys):
    async def status(request):
        raise AssertionError("nobody looks")

    trio.run(show, VIEW, {"status": status}, Output(as_json=True))
    assert capsys.readouterr().out == ""


def test_a_daemon_without_a_terminal_prints_a_line_on_change(capsys):
    async def status(request):
        assert request["command"] == "status"
        return {"state": "working"}

    async def main():
        with trio.move_on_after(1):
            await show(VIEW, {"status": status}, Output(as_json=False))

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out == "state working\n"


# ---- keys of every program


def pressed(letters, answers):
    """What the control commands are asked when these keys are pressed, and what is said."""
    asked, said = [], []

    async def ask(command, arguments):
        asked.append((command, dict(arguments)))
        return answers.get(command, {})

    async def main():
        keys = control_keys(ask)
        for letter, *typed in letters:
            said.append(await keys[letter].act(*typed))

    trio.run(main)
    return asked, said


def test_pause_and_resume_say_what_the_daemon_answers():
    asked, said = pressed(["p", "r"], {"pause": {"text": "paused by you"}})
    assert asked == [("pause", {}), ("resume", {})]
    assert said == ["paused by you", "resume"]


def test_quit_drains_and_says_so_and_the_second_time_waits_for_nothing():
    asked, said = pressed(["q", "q"], {})
    assert asked == [("quit", {"now": False}), ("quit", {"now": True})]
    assert said[0].startswith("draining")
    assert said[1] == "stopping at once"


def test_caps_are_typed_as_one_or_two_numbers():
    asked, said = pressed([("c", "500 0")], {"caps": {"up_kib": 500.0, "down_kib": 0.0}})
    assert asked == [("caps", {"up_kib": 500.0, "down_kib": 0.0})]
    assert said == ["up: 500 KiB/s, down: no cap"]
    assert typed_caps("7.5") == {"up_kib": 7.5, "down_kib": 7.5}


@pytest.mark.parametrize("text", ["", "fast", "1 2 3", "-1", "nan 5", "inf", "1e400"])
def test_caps_that_are_no_rates_are_refused_with_an_example(text):
    with pytest.raises(UsageError) as refused:
        typed_caps(text)
    assert "500 2000" in refused.value.hint


# ---- a real pseudo-terminal


def terminal(*words, **options):
    return open_terminal([sys.executable, "-m", "tests.local.screen.program", *words], **options)


@pytest.mark.slow
def test_keys_act_answers_are_shown_and_the_terminal_is_restored():
    with terminal("keys") as one:
        one.wait_for("state working")
        one.wait_for("p pause  c caps  q quit")
        one.type("p")
        one.wait_for("it is paused")
        one.wait_for("state paused")
        one.type("\x1b[Ac50")
        one.wait_for("caps? 50_")
        one.type("q\r")
        one.wait_for("50q is no number; type digits")
        one.type("c700\r")
        one.wait_for("caps are 700")
        assert not one.restored
        one.type("q")
        assert one.ended() == 0
        assert one.restored


@pytest.mark.slow
def test_a_resized_terminal_gets_a_screen_of_its_new_size():
    with terminal("keys") as one:
        one.wait_for("size 80x23")
        termios.tcsetwinsize(one.master, (40, 132))
        one.wait_for("size 132x39")
        one.type("q")
        assert one.ended() == 0


@pytest.mark.slow
def test_a_stopped_program_gives_the_terminal_back_and_takes_it_again():
    with terminal("keys") as one:
        one.wait_for("state working")
        one.type("\x1a")
        one.wait_for(LEFT)
        _, status = os.waitpid(one.program.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert one.restored
        one.program.send_signal(signal.SIGCONT)
        one.wait_for(SHOWN, times=2)
        one.type("p")
        one.wait_for("state paused")
        one.type("q")
        assert one.ended() == 0
        assert one.restored


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_program_and_the_terminal_is_restored(number):
    with terminal("keys") as one:
        one.wait_for("state working")
        one.program.send_signal(number)
        assert one.ended() in (-number, 1)
        assert one.restored


@pytest.mark.slow
def test_an_exception_restores_the_terminal_before_it_is_shown():
    with terminal("broken") as one:
        assert one.ended() == 1
        assert one.restored
        assert "RuntimeError: the render is broken" in one.after


@pytest.mark.slow
def test_without_a_keyboard_there_is_a_screen_and_no_key_help():
    with terminal("still", keys=False) as one:
        assert one.ended() == 0
        assert b"state working" in one.seen
        assert b"p pause" not in one.seen
        assert one.restored


@pytest.mark.slow
def test_nothing_is_drawn_while_nothing_changes():
    with terminal("still") as one:
        assert one.ended() == 0
        assert one.seen.count(FRAME) == 1


@pytest.mark.slow
def test_what_is_written_to_standard_error_meanwhile_is_shown_afterwards():
    with terminal("noisy") as one:
        assert one.ended() == 0
        assert b"warning" not in one.seen.rpartition(LEFT)[0]
        assert "warning 1" in one.after
        assert "warning 6" in one.after


@pytest.mark.slow
def test_no_colour_is_a_screen_without_colours():
    with terminal("keys", env={"NO_COLOR": "1"}) as one:
        one.wait_for("state working")
        one.type("q")
        assert one.ended() == 0
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", one.seen)


@contextmanager
def daemon(path):
    """A daemon's control socket, answered from another thread; yields what was asked."""
    asked, stop = [], threading.Event()
    listening = threading.Event()

    def answer(command, text):
        async def handle(request):
            asked.append((command, request.get("now")))
            if command == "quit":
                scope.cancel()
            return {"text": text, "state": "working"}

        return handle

    async def main():
        nonlocal scope
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                commands = {name: answer(name, f"{name} it is") for name in ("status", "pause", "quit")}
                await nursery.start(serve_control, path, commands)
                listening.set()
                await trio.to_thread.run_sync(stop.wait, abandon_on_cancel=True)
                scope.cancel()

    scope = None
    thread = threading.Thread(target=partial(trio.run, main))
    thread.start()
    try:
        assert listening.wait(WAIT_SECONDS)
        yield asked
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_an_attached_screen_acts_on_the_daemon_and_leaves_it_running(tmp_path):
    path = tmp_path / "control.sock"
    with daemon(path) as asked, terminal("attach", str(path)) as one:
        one.wait_for("d detach")
        one.type("p")
        one.wait_for("pause it is")
        one.type("d")
        assert one.ended() == 0
        assert one.restored
        assert ("pause", None) in asked
        assert not any(command == "quit" for command, _ in asked)


@pytest.mark.slow
def test_an_attached_screen_ends_with_the_daemon_that_it_has_stopped(tmp_path):
    path = tmp_path / "control.sock"
    with daemon(path) as asked, terminal("attach", str(path)) as one:
        one.wait_for("q quit")
        one.type("q")
        assert one.ended() == 0
        assert one.restored
        assert one.after.strip() == "it has stopped"
        assert asked[-1] == ("quit", False)


@pytest.mark.slow
def test_attached_to_a_dumb_terminal_there_are_lines(tmp_path):
    path = tmp_path / "control.sock"
    with daemon(path), terminal("attach", str(path), env={"TERM": "dumb"}) as one:
        one.wait_for("state working\r\n")
        one.program.send_signal(signal.SIGINT)
        assert one.ended() == 0
        assert b"\x1b" not in one.seen


@pytest.mark.slow
def test_without_a_daemon_there_is_no_screen(tmp_path):
    with terminal("attach", str(tmp_path / "control.sock")) as one:
        assert one.ended() == 1
        assert SHOWN not in one.seen
        assert b"no daemon answers" in one.seen
