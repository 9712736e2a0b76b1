"""`config check`: everything wrong is named at once, with what is allowed; `config show` says what holds."""

import dataclasses
import json
from typing import Annotated, Literal, get_type_hints

import pytest
from msgspec import Meta

from aurora_bootstrap.cli import run as run_bootstrap
from aurora_node.cli import main as node_main
from aurora_node.config import NodeConfig
from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.host.cli import main as host_main
from aurora_p2p.host.config import HostConfig
from aurora_p2p.local.config import render_config, setting
from aurora_p2p.local.configcheck import allowed, inspect


@dataclasses.dataclass(frozen=True)
class Every:
    """One setting of each kind."""

    text: str = setting("", "A text.")
    texts: tuple[str, ...] = setting((), "Texts.")
    number: Annotated[int, Meta(ge=1, le=4096)] = setting(1, "A number.")
    amount: Annotated[float, Meta(gt=0, le=2**40)] = setting(1.0, "An amount.")
    switch: bool = setting(False, "A switch.")
    choice: Literal["low", "high"] = setting("low", "A choice.")


def written(folder, text, name="node.toml"):
    path = folder / name
    path.write_text(text)
    return path


def outcome(main, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_every_wrong_key_is_found_at_once_and_right_ones_hold(tmp_path):
    text = 'numbr = 3\nnumber = 0\namount = -1.0\nswitch = 1\nchoice = "middle"\ntexts = [1]\ntext = "kept"\n'
    inspected = inspect(written(tmp_path, text), Every)
    found = {problem.key: problem for problem in inspected.problems}
    assert set(found) == {"numbr", "number", "amount", "switch", "choice", "texts"}
    assert found["numbr"].hint == "did you mean 'number'?"
    assert found["number"].text == "'0' is not a whole number from 1 to 4096"
    assert found["amount"].text == "'-1.0' is not a number above 0, at most 1099511627776"
    assert found["switch"].text == "'1' is not true or false"
    assert found["choice"].text == "'middle' is not one of 'low', 'high'"
    assert found["texts"].text == "'[1]' is not a list in which each is a text in quotes"
    assert inspected.config == Every(text="kept")
    assert inspected.given == {"text"}


def test_a_file_that_is_no_toml_is_one_problem_and_one_that_is_missing_an_error(tmp_path):
    [problem] = inspect(written(tmp_path, "number = "), Every).problems
    assert problem.key == ""
    assert "not valid TOML" in problem.text
    with pytest.raises(StoreError):
        inspect(tmp_path / "absent.toml", Every)


@pytest.mark.parametrize("kind", [NodeConfig, HostConfig, Every])
def test_whatever_a_setting_is_what_it_takes_can_be_said(kind):
    for field in dataclasses.fields(kind):
        said = allowed(get_type_hints(kind, include_extras=True)[field.name])
        assert said.startswith(("a ", "true ", "one of "))


def test_a_fresh_file_of_each_program_has_nothing_wrong(tmp_path, capsys):
    written(tmp_path, render_config(NodeConfig(quota_gib=0.001), "Settings."))
    assert outcome(node_main, ["config", "check", "--home", str(tmp_path)], capsys)[0] == 0
    written(tmp_path, render_config(HostConfig(quota_gib=0.001), "Settings."), "run.toml")
    assert outcome(host_main, ["config", "check", "--home", str(tmp_path)], capsys)[0] == 0


def test_addresses_networks_hours_engines_and_devices_are_checked_together_with_types(tmp_path, capsys):
    text = """
listen = ["/ip4/0.0.0.0/udp/1", "/ip4/0.0.0.0/tcp/99999"]
bulk_listen = "0.0.0.0"
bootstraps = ["/ip4/192.0.2.1/tcp/4101", "/ip4/192.0.2.1/tcp/4101/p2p/nobody"]
advertise = ["example.org"]
local = ["10.0.0.1/8"]
hours = ["22:00-07:00", "late"]
engine = "gpt"
device = "tpu"
metrics_listen = "0.0.0.0:9000"
quota_gib = 1000000000.0
max_batch = "many"
"""
    written(tmp_path, text)
    code, out, _ = outcome(node_main, ["config", "check", "--json", "--home", str(tmp_path)], capsys)
    told = json.loads(out)
    assert (code, told["ok"]) == (2, False)
    keys = [problem["key"] for problem in told["problems"]]
    assert sorted(keys) == sorted(
        ["listen", "listen", "bulk_listen", "bootstraps", "bootstraps", "advertise", "local", "hours", "engine",
         "device", "metrics_listen", "quota_gib", "max_batch"]
    )  # fmt: skip
    assert [problem["key"] for problem in told["problems"] if problem["warning"]] == ["quota_gib"]
    code, out, _ = outcome(node_main, ["config", "check", "--home", str(tmp_path)], capsys)
    assert code == 2
    assert out.splitlines()[-1].endswith("13 found")


def test_a_quota_above_the_free_disk_is_a_warning_and_status_0(tmp_path, capsys):
    written(tmp_path, "quota_gib = 1e9\n")
    code, out, _ = outcome(node_main, ["config", "check", "--home", str(tmp_path)], capsys)
    assert code == 0
    assert out.startswith("warning: quota_gib: 1e+09 GiB are more than there is room for")


def test_a_host_whose_checkpoint_is_missing_is_told(tmp_path, capsys):
    written(tmp_path, f'checkpoint = "{tmp_path}/none"\nquota_gib = 0.001\n', "run.toml")
    code, out, _ = outcome(host_main, ["config", "check", "--home", str(tmp_path)], capsys)
    assert (code, "holds no config.json" in out) == (2, True)


def test_a_bootstrap_file_is_checked_alike(tmp_path, capsys):
    written(tmp_path, 'listen = []\nmax_registration = 5\nmetrics_listen = "10.0.0.1:1"\n', "bootstrap.toml")
    assert run_bootstrap(["config", "check", "--home", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "did you mean 'max_registrations'?" in out
    assert "error: listen: there is no address" in out
    assert "error: metrics_listen: " in out


def test_show_prints_what_holds_and_where_it_comes_from(tmp_path, capsys):
    written(tmp_path, "max_batch = 4\nquota_gib = 0.001\n")
    code, out, _ = outcome(node_main, ["config", "show", "--home", str(tmp_path)], capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[lines.index("max_batch = 4") + 1] == "    Sequences generated at once."
    assert 'device = "auto"   (default)' in lines
    assert len(lines) == 2 * len(dataclasses.fields(NodeConfig))
    _, out, _ = outcome(node_main, ["config", "show", "--json", "--home", str(tmp_path)], capsys)
    assert json.loads(out)["max_batch"] == 4


def test_show_of_a_wrong_file_names_the_check(tmp_path, capsys):
    written(tmp_path, "max_batch = 0\n")
    code, out, err = outcome(node_main, ["config", "show", "--home", str(tmp_path)], capsys)
    assert (code, out) == (UsageError.exit_status, "")
    assert err.endswith("hint:  aurora-node config check\n")


@pytest.mark.parametrize(("main", "writer"), [(node_main, "aurora-node join"), (host_main, "aurora-host init")])
def test_without_a_file_the_command_that_writes_it_is_named(main, writer, tmp_path, capsys):
    code, _, err = outcome(main, ["config", "check", "--home", str(tmp_path)], capsys)
    assert (code, writer in err) == (74, True)
