"""The trainer's door over a real Unix socket: what trainers may do, and what a host survives."""

import json
import socket

import pytest
import trio
import trio.testing

from aurora_p2p.errors import RefusedError, ShapeError, UnreachableError
from aurora_p2p.local import faults
from aurora_p2p.local.control import socket_path
from aurora_p2p.local.faults import Armed, DiskRule, Plan
from aurora_p2p.swarm.events import Aborted, Produced, Publish
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.types import Step, Version
from aurora_p2p.wire.frame import encode_frame
from tests.host.world import KEYS, NODES, SEGMENT, SWARM, begin, digest_of, join_of, open_host
from tests.lease.world import SAMPLING


def serve(home, talk, **options):
    """Serve the door of a new host and run `talk(host, open_client)` in a thread; clients are closed at the end."""
    path, clients = socket_path(home, "trainer"), []

    def open_client():
        clients.append(SwarmClient.open(home))
        return clients[-1]

    async def main():
        async with open_host(home, **options) as host, trio.open_nursery() as nursery:
            nursery.start_soon(host.door.serve, path)
            await trio.testing.wait_all_tasks_blocked()
            try:
                await trio.to_thread.run_sync(talk, host, open_client)
            finally:
                for client in clients:
                    client.close()
                nursery.cancel_scope.cancel()
        assert not path.exists()

    trio.run(main)


def in_trio(use):
    """Run a function on the host's own thread, from a talk."""
    return trio.from_thread.run_sync(use)


def wait_until(condition):
    """Let the host run until `condition` holds, from a talk."""

    async def wait():
        with trio.fail_after(30):
            while not condition():
                await trio.lowlevel.checkpoint()

    trio.from_thread.run(wait)


def test_a_trainer_attaches_publishes_and_attaches_to_what_it_published(tmp_path):
    published = []

    def talk(host, open_client):
        host.door.on_published = lambda one, kind: published.append((one, kind))
        client = open_client()
        assert (client.attach().version, client.attach().digest) == (-1, b"")
        client.begin_publish(begin(0))
        client.send_body(bytes(SEGMENT))
        client.send_body(b"rest")
        answer = client.end_publish(digest_of(0))
        assert (answer.seq, answer.version, answer.segments, answer.length) == (1, 0, 2, SEGMENT + 4)
        assert published == [(answer, "snapshot")]
        attached = client.attach()
        assert (attached.swarm, attached.run, attached.segment_bytes) == (SWARM, host.ledger.run, SEGMENT)
        assert (attached.version, attached.digest) == (0, digest_of(0))
        assert host.pool.book.versions[0].manifests == {answer.manifest_hash}

    serve(tmp_path, talk)


def test_the_socket_is_for_its_owner_alone(tmp_path):
    def talk(host, open_client):
        assert (tmp_path / "trainer.sock").stat().st_mode & 0o777 == 0o600

    serve(tmp_path, talk)


def test_a_connection_that_is_lost_in_the_middle_of_a_publication_aborts_it(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0))
        client.send_body(bytes(SEGMENT))
        wait_until(lambda: host.driver.of(Produced))
        client.close()
        wait_until(lambda: host.driver.of(Aborted))
        wait_until(lambda: not host.store.reserved_bytes)
        assert not in_trio(lambda: host.desk.busy)
        other = open_client()
        other.begin_publish(begin(0))
        assert other.end_publish(digest_of(0)).seq == 2

    serve(tmp_path, talk)


def test_a_publication_given_up_by_its_trainer_is_aborted_and_the_next_may_begin(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0))
        client.abort_publish("changed my mind")
        assert len(host.driver.of(Aborted)) == 1
        client.begin_publish(begin(0))
        assert client.end_publish(digest_of(0)).seq == 2

    serve(tmp_path, talk)


def test_a_begin_that_is_refused_is_answered_at_the_end_with_its_hint(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(1, kind="delta", base_version=Version(0), base_digest=digest_of(0)))
        client.send_body(b"into the void")
        with pytest.raises(RefusedError, match="base is not the newest") as refused:
            client.end_publish(digest_of(1))
        assert refused.value.hint == "attach again, or publish a snapshot"
        assert host.driver.events == []
        client.begin_publish(begin(0))
        assert client.end_publish(digest_of(0)).version == 0

    serve(tmp_path, talk)


def test_a_refused_publication_that_is_given_up_is_simply_noted(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0, base_version=Version(3)))
        client.abort_publish("it was refused anyway")
        client.begin_publish(begin(0))
        assert client.end_publish(digest_of(0)).version == 0

    serve(tmp_path, talk)


def test_a_body_that_outgrows_its_bound_is_aborted_and_told_at_the_end(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0, size_bound=SEGMENT))
        for _ in range(3):
            client.send_body(bytes(SEGMENT))
        with pytest.raises(RefusedError, match="outgrows its bound of 256 bytes"):
            client.end_publish(digest_of(0))
        assert len(host.driver.of(Aborted)) == 1
        client.begin_publish(begin(0))
        assert client.end_publish(digest_of(0)).seq == 2

    serve(tmp_path, talk)


def test_what_the_exchange_or_the_quota_refuses_is_told_and_the_host_lives_on(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0, size_bound=1 << 30))
        with pytest.raises(RefusedError, match="does not fit") as refused:
            client.end_publish(digest_of(0))
        assert refused.value.hint == "raise quota_gib in the settings"
        host.driver.fail = ShapeError("the header is too large for a frame")
        client.begin_publish(begin(0))
        with pytest.raises(RefusedError, match="too large for a frame"):
            client.end_publish(digest_of(0))
        client.begin_publish(begin(0))
        assert client.end_publish(digest_of(0)).version == 0

    serve(tmp_path, talk)


def test_a_second_trainer_cannot_publish_beside_the_first_nor_into_its_publication(tmp_path):
    def talk(host, open_client):
        first, second = open_client(), open_client()
        first.begin_publish(begin(0))
        wait_until(lambda: host.driver.of(Publish))
        second.begin_publish(begin(0))
        with pytest.raises(RefusedError, match="another publication is under way"):
            second.end_publish(digest_of(0))
        second.send_body(b"foreign bytes")
        with pytest.raises(RefusedError, match="no publication is open on this connection") as refused:
            second.end_publish(digest_of(0))
        assert refused.value.hint == "send BeginPublish first"
        with pytest.raises(RefusedError, match="no publication is open on this connection"):
            second.end_publish(digest_of(0))
        second.close()
        first.send_body(b"weights")
        answer = first.end_publish(digest_of(0))
        assert (answer.seq, answer.length) == (1, len(b"weights"))
        assert host.driver.of(Aborted) == []

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 4096, bytes(64), b"GET / HTTP/1.1\r\n\r\n", encode_frame(b"\xc1"), encode_frame(b"\x91\xa6attach")[:-2]],
)
def test_garbage_costs_only_its_own_connection(content, tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0))
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(10)
            stranger.connect(str(tmp_path / "trainer.sock"))
            stranger.sendall(content)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(100) == b""
        client.send_body(b"weights")
        assert client.end_publish(digest_of(0)).version == 0

    serve(tmp_path, talk)


def test_garbage_in_the_middle_of_a_publication_aborts_it(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0))
        wait_until(lambda: host.driver.of(Publish))
        client._channel._socket.sendall(b"\xff" * 64)
        with pytest.raises(UnreachableError, match="closed the connection"):
            client.attach()
        wait_until(lambda: host.driver.of(Aborted))

    serve(tmp_path, talk)


def test_prompts_are_taken_once_and_a_contradiction_is_refused(tmp_path):
    def talk(host, open_client):
        client = open_client()
        for _ in range(2):  # the second is the same message again, after a lost answer
            client.submit(Step(0), [(1, 2)], 2, SAMPLING)
        with pytest.raises(RefusedError, match="submitted before, with other prompts"):
            client.submit(Step(0), [(1, 3)], 2, SAMPLING)
        assert list(host.pool.book.steps) == [0]

    serve(tmp_path, talk)


def test_rollouts_that_are_not_complete_are_waited_for_no_longer_than_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("aurora_p2p.train.client.POLL_SECONDS", 0.02)

    class Enough(Exception):
        pass

    def talk(host, open_client):
        client = open_client()
        client.submit(Step(0), [(1, 2)], 2, SAMPLING)

        def on_wait(waiting):
            assert (waiting.admitted, waiting.total) == (0, 2)
            assert waiting.why == "version 0, the oldest that may work on it: none is published"
            raise Enough

        with pytest.raises(Enough):
            client.rollouts(Step(0), on_wait)
        with pytest.raises(RefusedError, match="was never submitted"):
            client.rollouts(Step(1))

    serve(tmp_path, talk)


def test_the_status_is_the_hosts_own(tmp_path):
    def talk(host, open_client):
        host.door.status = lambda: {"version": 7}
        assert json.loads(open_client().status()) == {"version": 7}

    serve(tmp_path, talk)


def test_nobody_at_the_door_is_told_how_to_start_a_host(tmp_path):
    with pytest.raises(UnreachableError) as refused:
        SwarmClient.open(tmp_path)
    assert refused.value.hint == "start the host first: aurora-host run"


def test_what_was_published_can_be_asked_for_by_a_node(tmp_path):
    def talk(host, open_client):
        client = open_client()
        client.begin_publish(begin(0))
        client.end_publish(digest_of(0))
        host.answers._charter = None
        assert in_trio(lambda: host.answers.head(b"")).signer == KEYS.publish.peer
        assert in_trio(lambda: host.members.join(NODES[0].peer, join_of(NODES[0]), now=0.0)) is None

    serve(tmp_path, talk)


def test_a_full_disk_is_told_with_a_time_to_retry_and_the_publication_is_given_up_at_once(tmp_path, monkeypatch):
    def talk(host, open_client):
        client = open_client()
        monkeypatch.setattr(faults, "_armed", Armed(Plan((DiskRule("write", "*/body", hit=0),)), "host"))
        client.begin_publish(begin(0))
        client.send_body(bytes(SEGMENT))
        wait_until(lambda: host.driver.of(Aborted) and host.store.reserved_bytes == 0)
        assert host.desk.waits
        client.send_body(bytes(SEGMENT))
        with pytest.raises(RefusedError, match="No space") as refused:
            client.end_publish(digest_of(0))
        assert refused.value.retry_seconds > 0
        monkeypatch.setattr(faults, "_armed", None)
        client.begin_publish(begin(0))
        client.send_body(bytes(SEGMENT))
        assert client.end_publish(digest_of(0)).seq == 2
        assert not host.desk.waits

    serve(tmp_path, talk)


def test_a_trainer_that_meets_its_predecessors_publication_may_try_again(tmp_path):
    def talk(host, open_client):
        first, second = open_client(), open_client()
        first.begin_publish(begin(0))
        wait_until(lambda: host.desk.busy)
        second.begin_publish(begin(0))
        with pytest.raises(RefusedError, match="under way") as refused:
            second.end_publish(digest_of(0))
        assert refused.value.retry_seconds > 0

    serve(tmp_path, talk)
