"""What a node is answered: every named refusal, and that nothing is promised before it is on disk."""

import pytest
import trio
import trio.testing
from msgspec import structs

from aurora_p2p.errors import StoreError
from aurora_p2p.host.config import HostConfig
from aurora_p2p.host.keys import init_host, load_charter
from aurora_p2p.lease.events import LeaseGranted
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import LeaseId, ManifestHash, RunId, StateDigest, Step, SwarmId, Version
from aurora_p2p.wire.control import (
    Challenge,
    CommitFailed,
    Grant,
    HeadAnswer,
    Lease,
    LeaseRequest,
    Noted,
    Reason,
    Receipts,
    Refusal,
    Release,
    Released,
    RosterReply,
    RosterRequest,
    SampleResult,
    SignedLeaseRequest,
    Submit,
    Welcome,
)
from aurora_p2p.wire.signed import Signed, open_signed, seal
from aurora_p2p.wire.trust import Head, Roster
from tests.host.world import KEYS, NODES, SWARM, digest_of, events_of, join_of, open_host
from tests.lease.world import finish, prompts_of

NONCE = b"n" * 32


@pytest.fixture(scope="module")
def charter(tmp_path_factory):
    """A charter; the keys behind it are other ones, which no test here looks at."""
    home = tmp_path_factory.mktemp("charter") / "home"
    init_host(home, HostConfig())
    return load_charter(home)[0]


def request_of(host, node, *, signer=None, **changes):
    """A lease request of a node that holds the newest publication, with `changes`."""
    newest = host.desk.newest
    request = LeaseRequest(
        nonce=NONCE,
        run=host.ledger.run,
        version=newest.version if newest else Version(0),
        manifest_hash=newest.manifest_hash if newest else ManifestHash(bytes(32)),
        digest=newest.digest if newest else digest_of(0),
        tokens_per_second=0.0,
        max_samples=8,
    )
    return SignedLeaseRequest(seal(signer or node, structs.replace(request, **changes)))


def serve(tmp_path, charter, use, *, prompts=2):
    """Run `use(host, ask)` with a host that has published version 0 and two members; ask(node, request) answers."""

    async def main():
        async with open_host(tmp_path, charter=charter) as host:
            await host.publish(0)
            if prompts:
                await host.pool_door.handle(prompts_of(0, prompts, 2))

            async def ask(node, request):
                return await host.answers.answer(node.peer, request)

            for node in NODES[:2]:
                assert isinstance(await ask(node, join_of(node)), Welcome)
            await use(host, ask)

    trio.run(main)


# ---- joining and freshness


def test_who_joins_is_welcomed_with_charter_roster_and_a_head_over_its_nonce(tmp_path, charter, capsys):
    async def use(host, ask):
        changed = []
        host.answers.roster_changed = lambda: changed.append(True)
        welcome = await ask(NODES[2], join_of(NODES[2]))
        assert welcome.charter == charter
        head = open_signed(welcome.head, Head, {KEYS.publish.peer})
        newest = host.desk.newest
        assert (head.nonce, head.seq, head.version, head.artifact) == (bytes(32), 1, 0, newest.artifact)
        assert (head.manifest_hash, head.generation, head.swarm) == (newest.manifest_hash, 1, SWARM)
        assert head.roster_epoch == open_signed(welcome.roster, Roster, {KEYS.admit.peer}).epoch
        assert changed == [True]

    serve(tmp_path, charter, use)
    assert [event["peer"] for event in events_of(capsys)] == [node.peer for node in NODES[:3]]


def test_before_the_first_publication_there_is_no_head(tmp_path, charter):
    async def main():
        async with open_host(tmp_path, charter=charter) as host:
            welcome = await host.answers.answer(NODES[0].peer, join_of(NODES[0]))
            assert welcome.head is None
            assert (await host.answers.answer(NODES[0].peer, Challenge(NONCE))).head is None

    trio.run(main)


@pytest.mark.parametrize(("wire", "accepted"), [((1, 1), True), ((0, 9), True), ((2, 9), False), ((0, 0), False)])
def test_a_node_is_taken_only_when_the_wire_versions_overlap(wire, accepted, tmp_path, charter):
    async def use(host, ask):
        answer = await ask(NODES[2], join_of(NODES[2], wire=wire))
        assert isinstance(answer, Welcome) == accepted
        if not accepted:
            assert answer.reason is Reason.WIRE_VERSION
            assert "upgrade the older side" in answer.detail
            assert NODES[2].peer not in host.members

    serve(tmp_path, charter, use)


@pytest.mark.parametrize(
    ("join", "reason"),
    [
        (join_of(NODES[2], swarm=SwarmId(NODES[3].peer)), Reason.WRONG_SWARM),
        (join_of(NODES[3]), Reason.BAD_RECORD),
    ],
)
def test_a_join_that_is_refused_says_why(join, reason, tmp_path, charter):
    async def use(host, ask):
        answer = await ask(NODES[2], join)
        assert (type(answer), answer.reason) == (Refusal, reason)

    serve(tmp_path, charter, use)


def test_a_challenge_is_answered_over_its_own_nonce_to_anyone_and_keeps_a_member_alive(tmp_path, charter):
    async def use(host, ask):
        for node in (NODES[0], NODES[3]):
            answer = await ask(node, Challenge(NONCE))
            assert isinstance(answer, HeadAnswer)
            assert open_signed(answer.head, Head, {KEYS.publish.peer}).nonce == NONCE
        later = boottime() + 59.0
        assert host.members.expire(now=later) == []
        host.members.seen([NODES[0].peer], now=later)
        assert host.members.expire(now=later + 30.0) == [NODES[1].peer]

    serve(tmp_path, charter, use)


def test_the_roster_is_the_newest_one(tmp_path, charter):
    async def use(host, ask):
        host.members.renew()
        reply = await ask(NODES[0], RosterRequest(0))
        assert isinstance(reply, RosterReply)
        assert len(open_signed(reply.roster, Roster, {KEYS.admit.peer}).members) == 2

    serve(tmp_path, charter, use)


# ---- leases


def test_a_lease_is_signed_by_the_lease_key_and_comes_with_a_head_over_the_requests_nonce(tmp_path, charter):
    async def use(host, ask):
        grant = await ask(NODES[0], request_of(host, NODES[0]))
        assert isinstance(grant, Grant)
        lease = open_signed(grant.lease, Lease, {KEYS.lease.peer})
        assert (lease.lessee, lease.version, lease.digest) == (NODES[0].peer, 0, digest_of(0))
        assert open_signed(grant.head, Head, {KEYS.publish.peer}).nonce == NONCE

    serve(tmp_path, charter, use)


def test_a_stranger_gets_no_lease_and_no_receipt(tmp_path, charter):
    async def use(host, ask):
        result = seal(NODES[3], result_of(host))
        for request in (
            request_of(host, NODES[3]),
            Submit((result,), 0.0),
            Release(LeaseId(bytes(16)), 0),
            CommitFailed(Version(0), "no"),
        ):
            answer = await ask(NODES[3], request)
            assert (type(answer), answer.reason) == (Refusal, Reason.NOT_A_MEMBER)

    serve(tmp_path, charter, use)


def result_of(host):
    """A result under a lease that never was."""
    draw = (LeaseId(bytes(16)), 0, host.ledger.run, Step(0), 0, 0, 0, Version(0), ManifestHash(bytes(32)), digest_of(0))
    return SampleResult(*draw, Version(0), (1,), (-1.0,), "stop")


@pytest.mark.parametrize("signer", [NODES[1], NODES[3]])
def test_a_lease_request_signed_by_anyone_else_is_refused(signer, tmp_path, charter):
    async def use(host, ask):
        answer = await ask(NODES[0], request_of(host, NODES[0], signer=signer))
        assert answer.reason is Reason.BAD_SIGNATURE

    serve(tmp_path, charter, use)


def test_a_lease_request_whose_signature_or_body_is_damaged_is_refused(tmp_path, charter):
    async def use(host, ask):
        signed = request_of(host, NODES[0]).request
        lent = seal(NODES[0], result_of(host))  # a good signature, in another domain
        for damaged in (Signed(signed.signer, signed.body, bytes(64)), lent):
            answer = await ask(NODES[0], SignedLeaseRequest(damaged))
            assert answer.reason is Reason.BAD_SIGNATURE

    serve(tmp_path, charter, use)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": RunId(b"x" * 16)}, Reason.WRONG_RUN),
        ({"version": Version(7)}, Reason.VERSION_UNKNOWN),
        ({"digest": StateDigest(b"x" * 32)}, Reason.WRONG_DIGEST),
        ({"manifest_hash": ManifestHash(b"x" * 32)}, Reason.WRONG_MANIFEST),
    ],
)
def test_a_node_that_holds_something_else_is_told_what_is_wrong(changes, reason, tmp_path, charter):
    async def use(host, ask):
        answer = await ask(NODES[0], request_of(host, NODES[0], **changes))
        assert (answer.reason, bool(answer.detail)) == (reason, True)

    serve(tmp_path, charter, use)


def test_a_node_that_fell_behind_is_told_that_newer_weights_are_out(tmp_path, charter):
    async def use(host, ask):
        request = request_of(host, NODES[0])
        for version in (1, 2):
            await host.publish(version)
        answer = await ask(NODES[0], request)
        assert answer.reason is Reason.VERSION_TOO_OLD

    serve(tmp_path, charter, use)


def test_a_draining_host_grants_nothing(tmp_path, charter):
    async def use(host, ask):
        host.answers.draining = True
        answer = await ask(NODES[0], request_of(host, NODES[0]))
        assert answer.reason is Reason.DRAINING
        assert answer.retry_seconds > 0
        assert not host.pool.book.live

    serve(tmp_path, charter, use)


def test_without_work_a_request_waits_for_it_and_gets_it_as_soon_as_it_is_there(tmp_path, charter):
    async def use(host, ask):
        answers = []

        async def wait():
            answers.append(await ask(NODES[0], request_of(host, NODES[0])))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                await host.pool_door.handle(prompts_of(0, 2, 2))
        assert isinstance(answers[0], Grant)

    serve(tmp_path, charter, use, prompts=0)


def test_without_work_the_answer_comes_within_the_wait_and_names_the_time_to_ask_again(tmp_path, charter, monkeypatch):
    monkeypatch.setattr("aurora_p2p.host.answers.WORK_WAIT_SECONDS", 0.05)

    async def use(host, ask):
        answer = await ask(NODES[0], request_of(host, NODES[0]))
        assert answer.reason is Reason.NO_WORK
        assert answer.retry_seconds > 0

    serve(tmp_path, charter, use, prompts=0)


def test_a_wait_that_is_already_over_ends_at_once(tmp_path, charter):
    async def use(host, ask):
        await host.pool_door.wait_for_change(-0.001)

    serve(tmp_path, charter, use)


# ---- results


def test_results_are_receipted_and_the_rest_of_a_lease_can_be_given_back(tmp_path, charter):
    async def use(host, ask):
        grant = await ask(NODES[0], request_of(host, NODES[0]))
        lease = open_signed(grant.lease, Lease, {KEYS.lease.peer})
        assert len(lease.samples) >= 2
        receipts = await ask(NODES[0], Submit((finish(NODES[0], lease, lease.samples[0]),), 5.0))
        assert isinstance(receipts, Receipts)
        assert [receipt.accepted for receipt in receipts.receipts] == [True]
        stolen = await ask(NODES[1], Release(lease.lease, lease.fencing))
        assert stolen.reason is Reason.NOT_THE_LESSEE
        fenced = await ask(NODES[0], Release(lease.lease, lease.fencing + 1))
        assert fenced.reason is Reason.FENCED
        released = await ask(NODES[0], Release(lease.lease, lease.fencing))
        assert released == Released(len(lease.samples) - 1)
        late = await ask(NODES[0], Submit((finish(NODES[0], lease, lease.samples[1]),), 5.0))
        assert late.receipts[0].reason == Reason.LEASE_SPENT

    serve(tmp_path, charter, use)


def test_a_commit_that_failed_is_shown_with_nothing_that_steers_a_terminal(tmp_path, charter, capsys):
    async def use(host, ask):
        assert await ask(NODES[0], CommitFailed(Version(3), "bad\x1b[2Jdigest")) == Noted()

    serve(tmp_path, charter, use)
    event = events_of(capsys)[-1]
    assert (event["event"], event["version"], event["detail"]) == ("commit-failed", 3, "bad?[2Jdigest")


# ---- the ledger comes first


def test_no_lease_leaves_that_a_restarted_host_would_not_know(tmp_path, charter):
    granted = []

    async def use(host, ask):
        for node in NODES[:2]:
            grant = await ask(node, request_of(host, node))
            granted.append(open_signed(grant.lease, Lease, {KEYS.lease.peer}))
        await ask(NODES[0], Submit((finish(NODES[0], granted[0], granted[0].samples[0]),), 0.0))

    async def restarted():
        async with open_host(tmp_path, charter=charter) as host:
            live = host.pool.book.live
            assert set(live) == {lease.lease for lease in granted}
            assert len(live[granted[0].lease].seeds) == len(granted[0].samples) - 1
            reply = await host.answers.answer(NODES[0].peer, join_of(NODES[0]))
            assert isinstance(reply, Welcome)
            again = await host.answers.answer(
                NODES[0].peer, Submit((finish(NODES[0], granted[0], granted[0].samples[0]),), 0.0)
            )
            assert again.receipts[0].accepted  # its acknowledgement may have been lost: admitted once all the same
            assert len(host.pool.book.steps[0].admitted) == 1

    serve(tmp_path, charter, use, prompts=32)
    trio.run(restarted)


def fill(host):
    """SQLite's own way to say that the disk ends here."""
    pages = host.ledger._db.execute("PRAGMA page_count").fetchone()[0]
    host.ledger._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_on_a_full_disk_no_lease_is_granted_by_name_and_everything_goes_on_when_there_is_room(tmp_path, charter):
    async def use(host, ask):
        await host.pool_door.handle(prompts_of(1, 1, 2))
        fill(host)
        said = trio.Event()
        host.ledger.on_wait = lambda why: said.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.pool_door.handle, prompts_of(2, 60_000, 1))
            with trio.fail_after(30):
                await said.wait()
            refusal = await ask(NODES[0], request_of(host, NODES[0]))
            assert (refusal.reason, refusal.detail) == (Reason.DISK_FULL, "the host's disk is full")
            assert not host.pool.book.live
            host.ledger._db.execute(f"PRAGMA max_page_count = {1 << 30}").fetchall()
        assert isinstance(await ask(NODES[0], request_of(host, NODES[0])), Grant)
        assert prompts_of(2, 60_000, 1) in host.ledger.restore()

    serve(tmp_path, charter, use)


def test_a_ledger_that_nobody_waits_for_any_more_finds_the_room_by_itself(tmp_path, charter):
    async def use(host, ask):
        fill(host)
        seen = []
        host.ledger.on_wait = seen.append
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.pool_door.handle, prompts_of(2, 60_000, 1))
                while not seen:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            host.ledger._db.execute(f"PRAGMA max_page_count = {1 << 30}").fetchall()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.pool_door.run)
                while len(seen) < 2:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert seen[1] == "" == host.ledger.waits

    serve(tmp_path, charter, use)


def test_a_ledger_that_fails_otherwise_ends_the_host(tmp_path, charter):
    async def use(host, ask):
        host.ledger._db.execute("PRAGMA query_only = 1").fetchall()
        with pytest.raises(StoreError, match="readonly"):
            await host.pool_door.handle(prompts_of(1, 1, 2))
        with pytest.raises(StoreError, match="readonly"), trio.fail_after(30):
            await host.pool_door.run()

    serve(tmp_path, charter, use)


def test_a_lease_whose_deadline_passes_returns_its_samples_and_wakes_who_waits(tmp_path, charter):
    async def use(host, ask):
        grant = await ask(NODES[0], request_of(host, NODES[0]))
        lease = open_signed(grant.lease, Lease, {KEYS.lease.peer})
        host.pool.book.live[lease.lease].granted -= lease.seconds
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.pool_door.run)
                await host.pool_door.wait_for_change(30)
                nursery.cancel_scope.cancel()
        assert not host.pool.book.live
        assert host.pool.book.steps[0].open_samples() == 4
        assert not [record for record in host.ledger.restore() if isinstance(record, LeaseGranted)]

    serve(tmp_path, charter, use)
