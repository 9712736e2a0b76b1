"""Settings: what a person reads, may write, and is told when it is wrong."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_node.config import NodeConfig
from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.host.config import HostConfig
from aurora_p2p.local.config import checked, default_home, load_config, make_home, render_config, setting

PROGRAMS = pytest.mark.parametrize("kind", [HostConfig, NodeConfig])


@dataclasses.dataclass(frozen=True)
class Every:
    """One setting of each type."""

    text: str = setting("", "A text.")
    texts: tuple[str, ...] = setting((), "Texts.")
    number: int = setting(0, "A number.")
    amount: float = setting(0.0, "An amount.")
    switch: bool = setting(False, "A switch.")


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


@PROGRAMS
def test_the_file_that_init_writes_reads_back_as_the_same_settings(kind, tmp_path):
    assert load_config(written(tmp_path, render_config(kind(), "Settings.")), kind) == kind()


@PROGRAMS
def test_every_key_is_written_below_a_line_that_says_what_it_is(kind):
    lines = render_config(kind(), "Settings.").splitlines()
    for field in dataclasses.fields(kind):
        [at] = [index for index, line in enumerate(lines) if line.startswith(f"{field.name} = ")]
        assert lines[at - 1] == f"# {field.metadata['meaning']}"
        assert len(field.metadata["meaning"]) > 10


@given(
    st.builds(
        Every,
        st.text(st.characters(codec="utf-8")),
        st.lists(st.text(st.characters(codec="utf-8"))).map(tuple),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.booleans(),
    )
)
def test_whatever_the_values_are_the_file_reads_back_as_they_were(config):
    table = tomllib.loads(render_config(config, "Settings."))
    assert checked(Every(**{**table, "texts": tuple(table["texts"])})) == config


def test_missing_keys_take_their_defaults(tmp_path):
    assert load_config(written(tmp_path, "max_lag = 2"), HostConfig) == HostConfig(max_lag=2)


def test_an_unknown_key_is_refused_and_the_nearest_one_named(tmp_path):
    with pytest.raises(UsageError, match="unknown key 'segment_byte'") as refused:
        load_config(written(tmp_path, "segment_byte = 4096"), HostConfig)
    assert refused.value.hint == "did you mean 'segment_bytes'?"
    assert str(tmp_path / "run.toml") in str(refused.value)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('segment_bytes = "many"', "segment_bytes"),
        ("segment_bytes = 100", "segment_bytes"),
        ("segment_bytes = true", "segment_bytes"),
        ("up_kib_per_second = -1.0", "up_kib_per_second"),
        ("down_kib_per_second = nan", "down_kib_per_second"),
        ("quota_gib = inf", "quota_gib"),
        ("max_lease_samples = 0", "max_lease_samples"),
        ("max_lag = -1", "max_lag"),
        ("bootstraps = [1]", "bootstraps"),
        ('listen = "/ip4/127.0.0.1/tcp/0"', "listen"),
    ],
)
def test_a_wrong_value_is_refused_and_its_key_named(line, key, tmp_path):
    with pytest.raises(UsageError, match=key) as refused:
        load_config(written(tmp_path, line), HostConfig)
    assert refused.value.exit_status == 2
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("change", [{"audit_every": 0}, {"max_batch": 0}, {"threads": -1}, {"up_kib_per_second": -5.0}])
def test_a_setting_from_the_command_line_is_checked_like_one_from_the_file(change):
    [key] = change
    with pytest.raises(UsageError, match=key):
        checked(dataclasses.replace(NodeConfig(), **change))


@pytest.mark.parametrize("content", [b"max_lag = ", b"\xff\xfe", b"max_lag = 1\nmax_lag = 2"])
def test_a_file_that_is_no_toml_is_a_usage_error(content, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not valid TOML"):
        load_config(path, HostConfig)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot read .*run.toml: No such file"):
        load_config(tmp_path / "run.toml", HostConfig)


def test_a_home_is_made_private_also_when_it_was_not(tmp_path):
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True, mode=0o755)
    assert make_home(home) == home
    assert home.stat().st_mode & 0o777 == 0o700
    assert list(home.iterdir()) == []


def test_a_home_that_cannot_be_written_is_one_line_with_a_hint_and_status_74(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write to .*: Not a directory") as refused:
        make_home(tmp_path / "file" / "home")
    assert refused.value.exit_status == 74
    assert "--home" in refused.value.hint


def test_the_default_home_is_below_aurora_home_where_that_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("AURORA_HOME", str(tmp_path))
    assert default_home("node") == tmp_path / "node"
    monkeypatch.delenv("AURORA_HOME")
    assert default_home("node").parts[-2:] == ("aurora", "node")
    assert os.fspath(default_home("node")).startswith("/")


def test_a_default_that_toml_cannot_say_is_our_own_mistake():
    with pytest.raises(TypeError, match="dict"):
        setting({}, "no")
