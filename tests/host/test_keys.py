"""`init` and `delegate`: files, modes, generations, and every way to be refused."""

import pytest
import trio

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.errors import StaleError, StoreError, UsageError
from aurora_p2p.host.cli import main
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.keys import CHARTER, CONFIG, ROOT, delegate, init_host, load_charter
from aurora_p2p.host.service import run_host
from aurora_p2p.local.config import load_config
from aurora_p2p.store.ledger import Ledger
from aurora_p2p.store.schema import FloorSeen
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.types import Generation, Seq

LOCAL = HostConfig(listen=("/ip4/127.0.0.1/tcp/0",), bulk_listen="127.0.0.1:0")


@pytest.fixture
def home(tmp_path):
    init_host(tmp_path / "home", LOCAL)
    return tmp_path / "home"


def status_of(words, capsys):
    """(exit status, stderr) of aurora-host in this process."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code, capsys.readouterr().err


def test_init_makes_a_swarm_that_a_node_can_verify_from_its_id_alone(tmp_path):
    swarm = init_host(tmp_path / "home", LOCAL)
    charter, delegation = load_charter(tmp_path / "home")
    trust = Trust(swarm)
    assert trust.adopt(charter)
    keys = RoleKeys.load(tmp_path / "home")
    assert (trust.publish, trust.admit, trust.lease) == (keys.publish.peer, keys.admit.peer, keys.lease.peer)
    assert trust.hosts == {keys.node.peer}
    assert delegation.generation == 1
    assert load_config(tmp_path / "home" / CONFIG, HostConfig) == LOCAL


def test_everything_init_writes_is_for_its_owner_alone(home):
    assert home.stat().st_mode & 0o777 == 0o700
    names = {path.name for path in home.iterdir()}
    assert names == {CHARTER, CONFIG, ROOT, "publish.key", "admit.key", "lease.key", "node.key"}
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}


def test_the_five_keys_are_all_different(home):
    assert len({Identity.load(path).peer for path in home.glob("*.key")}) == 5


def test_init_in_a_home_that_holds_a_swarm_is_refused_and_changes_nothing(home, capsys):
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    status, said = status_of(["init", "--home", str(home)], capsys)
    assert status == 2
    assert f"error: {home} already holds a swarm\nhint:  use another --home, or `aurora-host run`" in said
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


def test_init_is_refused_also_where_only_the_root_key_is(tmp_path):
    (tmp_path / "home").mkdir()
    Identity.generate().save(tmp_path / "home" / ROOT)
    with pytest.raises(UsageError, match="already holds a swarm"):
        init_host(tmp_path / "home", LOCAL)


def test_init_in_a_home_that_cannot_be_written_is_one_line_and_status_74(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    status, said = status_of(["init", "--home", str(tmp_path / "file" / "home")], capsys)
    assert status == 74
    assert said.startswith("error: cannot write to ")
    assert said.splitlines()[1].startswith("hint:  choose another folder with --home")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--segment-bytes", "3"], 2, "segment_bytes"),
        (["--segment-bytes", "9000000"], 2, "segment_bytes"),
        (["--max-lease-samples", "0"], 2, "max_lease_samples"),
        (["--local", "10.0.0.1/8"], 2, "is not a network"),
        (["--bootstrap", "somewhere"], 2, "'somewhere' is not /ip4"),
        (["--listen", "/dns4/host/tcp/1"], 2, "is not /ip4"),
        (["--bulk-listen", "127.0.0.1"], 2, "is not IP:port"),
        (["--checkpoint", "/nowhere"], 66, "holds no config.json"),
    ],
)
def test_init_refuses_a_wrong_setting_before_it_makes_anything(words, status, text, tmp_path, capsys):
    code, said = status_of(["init", "--home", str(tmp_path / "home"), *words], capsys)
    assert (code, said.count("error:")) == (status, 1)
    assert text in said
    assert not (tmp_path / "home").exists()


def test_init_says_what_to_keep_safe_and_what_to_type_next(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["init", "--home", str(tmp_path / "home"), "--local", "10.0.0.0/8", "--segment-bytes", "2048"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"aurora-host run --home {tmp_path / 'home'}" in said
    assert "root.key   move it to a safe place" in said
    assert load_config(tmp_path / "home" / CONFIG, HostConfig) == HostConfig(local=("10.0.0.0/8",), segment_bytes=2048)


def test_delegate_raises_the_generation_and_keeps_the_keys(home):
    _, before = load_charter(home)
    assert delegate(home, home / ROOT) == 2
    charter, after = load_charter(home)
    assert (after.generation, after.swarm, after.publish) == (2, before.swarm, before.publish)
    assert Trust(before.swarm).adopt(charter)


def test_delegate_with_another_swarms_root_is_refused_and_signs_nothing(home, tmp_path):
    init_host(tmp_path / "other", LOCAL)
    before = (home / CHARTER).read_bytes()
    with pytest.raises(StaleError, match="is not the root of this swarm") as refused:
        delegate(home, tmp_path / "other" / ROOT)
    assert load_charter(home)[1].swarm in refused.value.hint
    assert (home / CHARTER).read_bytes() == before


def test_delegate_takes_the_root_from_wherever_it_is_kept(home, tmp_path, capsys):
    (home / ROOT).rename(tmp_path / "offline.key")
    with pytest.raises(SystemExit) as ended:
        main(["delegate", "--home", str(home), "--root", str(tmp_path / "offline.key")])
    assert ended.value.code == 0
    assert "signed generation 2; restart `aurora-host run`" in capsys.readouterr().out
    assert status_of(["delegate", "--home", str(home)], capsys)[0] == 74  # it is not in the home any more


def ran_as(home, generation):
    """What a host leaves in the ledger that once ran with this generation."""
    ledger = Ledger.open(home / "ledger.sqlite")
    trio.run(ledger.commit, [FloorSeen(Generation(generation), Seq(0))])
    ledger.close()


def test_a_charter_from_a_backup_is_refused_before_anything_listens(home):
    ran_as(home, 3)
    with pytest.raises(StaleError, match="restored from a backup: generation 3") as refused:
        run_host(home, LOCAL, as_json=True)
    assert "aurora-host delegate" in refused.value.hint
    assert not (home / "control.sock").exists()


def test_delegating_after_a_backup_passes_every_generation_that_was_used(home):
    ran_as(home, 3)
    assert delegate(home, home / ROOT) == 4  # 2 and 3 exist somewhere, signed for other keys perhaps


def test_delegate_is_refused_while_the_host_runs(home):
    ledger = Ledger.open(home / "ledger.sqlite")
    with pytest.raises(StoreError, match="locked"):
        delegate(home, home / ROOT)
    ledger.close()


def test_a_home_without_a_swarm_says_how_to_make_one(tmp_path, capsys):
    for command in ("run", "delegate"):
        status, said = status_of([command, "--home", str(tmp_path)], capsys)
        assert status == 74
        assert f"hint:  run `aurora-host init --home {tmp_path}` first" in said


@pytest.mark.parametrize("damage", [lambda old: old[:-1], lambda old: old[:-1] + bytes([old[-1] ^ 1]), lambda old: b""])
def test_a_damaged_charter_is_named(damage, home):
    (home / CHARTER).write_bytes(damage((home / CHARTER).read_bytes()))
    with pytest.raises(StoreError, match=r"charter\.bin is damaged"):
        load_charter(home)


def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(home):
    (home / "publish.key").chmod(0o644)
    with pytest.raises(UsageError, match="can be read by other users") as refused:
        RoleKeys.load(home)
    assert refused.value.hint == f"chmod 600 {home / 'publish.key'}"


def test_a_key_that_is_missing_is_named(home):
    (home / "lease.key").unlink()
    with pytest.raises(StoreError, match=r"lacks lease\.key"):
        RoleKeys.load(home)
