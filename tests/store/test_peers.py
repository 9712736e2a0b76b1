import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import StoreError
from aurora_p2p.store import peers
from aurora_p2p.store.peers import SwarmMemory
from aurora_p2p.types import Generation, Seq, SwarmId
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.trust import Charter, Delegation, Floor, PeerRecord

ROOT = Identity(bytes(32))
SWARM = SwarmId(ROOT.peer)
NODES = [Identity(bytes([index]) * 32) for index in range(1, 6)]


def record(node, seq, port=4001):
    return seal(node, PeerRecord(SWARM, node.peer, seq, (f"/ip4/192.0.2.1/tcp/{port}",), ("192.0.2.1:4002",), 0))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "swarm.db"


@pytest.fixture
def memory(path):
    memory = SwarmMemory.open(path, SWARM)
    yield memory
    memory.close()


def again(memory, path):
    memory.close()
    return SwarmMemory.open(path, SWARM)


def test_a_new_memory_accepts_everything_and_knows_nobody(memory):
    assert memory.floor() == Floor(Generation(0), Seq(0))
    assert memory.charter() is None
    assert memory.peers() == []


def test_the_floor_only_rises_and_survives_a_restart(memory, path):
    memory.raise_floor(Floor(Generation(2), Seq(7)))
    memory.raise_floor(Floor(Generation(1), Seq(9)))
    memory.raise_floor(Floor(Generation(2), Seq(3)))
    memory = again(memory, path)
    assert memory.floor() == Floor(Generation(2), Seq(9))
    memory.close()


def test_the_charter_is_kept_as_it_was_signed(memory, path):
    delegation = Delegation(SWARM, Generation(1), ROOT.peer, ROOT.peer, ROOT.peer, (ROOT.peer,))
    charter = Charter(seal(ROOT, delegation))
    memory.save_charter(charter)
    memory = again(memory, path)
    assert memory.charter() == charter
    memory.close()


def test_the_own_record_seq_never_comes_twice(memory, path):
    seqs = [memory.next_record_seq(), memory.next_record_seq()]
    memory = again(memory, path)
    assert [*seqs, memory.next_record_seq()] == [1, 2, 3]
    memory.close()


def test_a_newer_record_replaces_an_older_one_and_never_the_other_way_round(memory):
    memory.remember([record(NODES[0], 5), record(NODES[1], 1)])
    memory.remember([record(NODES[0], 4, port=1)])
    assert memory.peers() == [record(NODES[1], 1), record(NODES[0], 5)]
    memory.remember([record(NODES[0], 6, port=2)])
    assert memory.peers() == [record(NODES[0], 6, port=2), record(NODES[1], 1)]


def test_only_the_peers_heard_of_last_are_kept(memory, monkeypatch):
    monkeypatch.setattr(peers, "MAX_REMEMBERED", 3)
    memory.remember([record(node, 1) for node in NODES])
    memory.remember([record(NODES[2], 2)])
    assert memory.peers() == [record(NODES[2], 2), record(NODES[4], 1), record(NODES[3], 1)]


def test_a_forgotten_peer_is_gone(memory):
    memory.remember([record(NODES[0], 1), record(NODES[1], 1)])
    memory.forget(NODES[0].peer)
    assert memory.peers() == [record(NODES[1], 1)]


def test_a_file_of_another_swarm_is_refused(memory, path):
    memory.close()
    with pytest.raises(StoreError, match="belongs to swarm"):
        SwarmMemory.open(path, SwarmId(NODES[0].peer))


def test_two_daemons_cannot_share_one_memory(memory, path):
    with pytest.raises(StoreError, match="locked"):
        SwarmMemory.open(path, SWARM)


def test_on_a_full_disk_what_is_to_be_remembered_is_owed_and_written_when_there_is_room(memory, path):
    pages = memory._db.execute("PRAGMA page_count").fetchone()[0]
    memory._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()  # SQLite's own way to say: the disk ends here
    many = [record(Identity(bytes([7, index]) * 16), 1) for index in range(200)]
    memory.remember(many)
    assert "full" in memory.waits
    assert memory.peers() == []
    memory._db.execute(f"PRAGMA max_page_count = {1 << 30}").fetchall()
    memory.raise_floor(Floor(Generation(2), Seq(9)))
    assert memory.waits == ""
    memory = again(memory, path)
    assert memory.floor() == Floor(Generation(2), Seq(9))
    assert set(memory.peers()) == set(many)
    memory.close()
