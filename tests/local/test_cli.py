"""The frame around every program: one clear line, a hint, an exit status; a bug keeps its traceback."""

import subprocess
import sys

import pytest

from aurora_p2p.errors import AuroraError, StaleError, StoreError, UnreachableError
from aurora_p2p.local.cli import run_cli


def outcome(main, capsys):
    """(exit status, stderr)."""
    with pytest.raises(SystemExit) as ended:
        run_cli(main)
    return ended.value.code, capsys.readouterr().err


def raising(error):
    def main():
        raise error

    return main


def test_success_is_status_0_and_a_status_is_passed_on(capsys):
    assert outcome(lambda: None, capsys) == (0, "")
    assert outcome(lambda: 3, capsys) == (3, "")


def test_an_error_is_one_line_and_a_hint_and_its_own_status(capsys):
    error = UnreachableError("no host answered", hint="check the cable")
    assert outcome(raising(error), capsys) == (69, "error: no host answered\nhint:  check the cable\n")
    assert outcome(raising(StaleError("old")), capsys) == (75, "error: old\n")


def test_every_error_class_that_is_its_own_kind_has_its_own_status():
    kinds = AuroraError.__subclasses__()
    assert len({kind.exit_status for kind in [AuroraError, *kinds]}) == len(kinds) + 1


def test_an_error_inside_nurseries_is_reported_as_if_there_were_none(capsys):
    group = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [StoreError("disk full")])])
    assert outcome(raising(group), capsys) == (74, "error: disk full\n")


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: BaseExceptionGroup("nursery", [error])])
def test_the_system_s_own_errors_are_one_line_with_the_file(wrap, capsys):
    error = OSError(28, "No space left on device", "/home/x/engine.log")
    assert outcome(raising(wrap(error)), capsys) == (74, "error: /home/x/engine.log: No space left on device\n")


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: BaseExceptionGroup("nursery", [error])])
def test_ctrl_c_is_status_130_without_words(wrap, capsys):
    assert outcome(raising(wrap(KeyboardInterrupt())), capsys) == (130, "")


def test_a_bug_keeps_its_traceback_also_beside_an_expected_error():
    with pytest.raises(ZeroDivisionError):
        run_cli(lambda: 1 // 0)
    group = BaseExceptionGroup("nursery", [StoreError("disk full"), KeyError("ours")])
    with pytest.raises(BaseExceptionGroup) as raised:
        run_cli(raising(group))
    assert raised.value is group


@pytest.mark.parametrize("body", ["print('x' * 100_000)", "raise BaseExceptionGroup('n', [BrokenPipeError()])"])
def test_a_reader_that_has_gone_is_no_error(body):
    code = f"import sys\nfrom aurora_p2p.local.cli import run_cli\ndef main():\n    {body}\nrun_cli(main)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert (child.stderr.read(), child.wait(timeout=60)) == (b"", 0)
    child.stderr.close()
