"""`where`: every place, its size, and whether the daemon runs."""

import json
import os
import socket

import pytest

from aurora_node.cli import main as node_main
from aurora_p2p.host.cli import main as host_main
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.keys import init_host
from aurora_p2p.local.control import socket_path
from aurora_p2p.local.where import disk_bytes, render_survey


def where(main, home, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["where", "--json", "--home", str(home)])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_is_counted_without_following_links(tmp_path):
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(1 << 20))
    (home / "own").write_bytes(os.urandom(1 << 16))
    before = disk_bytes(home)
    assert 1 << 16 <= before < 1 << 18
    (home / "link").symlink_to(outside)
    assert disk_bytes(home) - before < 1 << 14
    assert disk_bytes(tmp_path / "absent") == 0


def test_a_node_that_never_ran_shows_where_everything_would_be(tmp_path, capsys):
    shown = where(node_main, tmp_path / "home", capsys)
    assert (shown["exists"], shown["pid"], shown["bytes"]) == (False, None, 0)
    assert {"config", "key", "ticket", "logs", "control"} <= {place["name"] for place in shown["places"]}
    assert "not there yet" in render_survey(shown)
    assert not (tmp_path / "home").exists()


def test_the_artifacts_of_each_swarm_are_listed_with_their_size(tmp_path, capsys):
    for swarm in ("a" * 16, "b" * 16):
        (tmp_path / "swarms" / swarm / "artifacts").mkdir(parents=True)
        (tmp_path / "swarms" / swarm / "artifacts" / "body").write_bytes(os.urandom(1 << 16))
    artifacts = [place for place in where(node_main, tmp_path, capsys)["places"] if place["name"] == "artifacts"]
    assert [place["bytes"] >= 1 << 16 for place in artifacts] == [True, True]
    assert "a" * 16 in artifacts[0]["what"]


def test_every_file_that_init_makes_has_its_place(tmp_path, capsys):
    init_host(tmp_path, HostConfig())
    places = {place["path"] for place in where(host_main, tmp_path, capsys)["places"]}
    assert {str(path) for path in tmp_path.iterdir()} <= places


def test_a_running_daemon_is_named_by_its_process(tmp_path, capsys):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(socket_path(tmp_path, "control")))
        listener.listen()
        shown = where(node_main, tmp_path, capsys)
    assert shown["pid"] == os.getpid()
    assert f"runs as process {os.getpid()}" in render_survey(shown)
    assert where(node_main, tmp_path, capsys)["pid"] is None, "a socket that a killed daemon left"
