"""Finding a host, joining it, staying fresh: the real answers of a real host, over a network that is a table.

The network (net/host.py's ControlHost) is the process-external part: an address leads to a peer, a peer to who answers.
"""

import dataclasses

import pytest
import trio
import trio.testing
from msgspec import structs

from aurora_node import link as link_module
from aurora_node.link import HostLink, Place
from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import RefusedError, StaleError, UnreachableError, UsageError, WireError
from aurora_p2p.host.answers import Answers
from aurora_p2p.local.clock import boottime
from aurora_p2p.local.output import Output
from aurora_p2p.store.peers import SwarmMemory
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.types import Generation, Seq
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import (
    CommitFailed,
    Grant,
    LeaseRequest,
    Noted,
    Reason,
    Refusal,
    Release,
    Request,
    SignedLeaseRequest,
    Submit,
)
from aurora_p2p.wire.signed import seal
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trust import Charter, Delegation, Floor
from tests.host.world import KEYS, NODES, ROOT, SWARM, open_host, record_of
from tests.lease.world import finish, prompts_of

ME = NODES[0]
HOME = "/ip4/127.0.0.1/tcp/4100/p2p/" + KEYS.node.peer
BOOTSTRAP = "/ip4/127.0.0.1/tcp/4101/p2p/" + NODES[3].peer
LOCAL = ("127.0.0.0/8",)


def charter_of(generation, root=ROOT):
    roles = (KEYS.publish.peer, KEYS.admit.peer, KEYS.lease.peer)
    return Charter(seal(root, Delegation(SWARM, Generation(generation), *roles, (KEYS.node.peer,))))


class Network:
    """`routes`: address -> peer; `answering`: peer -> async (request) -> reply, or an exception to raise."""

    def __init__(self):
        self.routes, self.answering, self.dialled = {}, {}, []

    async def connect(self, address, *, seconds):
        assert 0 < seconds < 60
        await trio.lowlevel.checkpoint()
        self.dialled.append(address)
        if address not in self.routes:
            raise UnreachableError("connection refused")
        return self.routes[address]

    async def request(self, peer, protocol, message, reply, *, seconds, limit=0):
        assert 0 < seconds < 60
        await trio.lowlevel.checkpoint()
        answer = self.answering.get(peer, UnreachableError("not connected"))
        if isinstance(answer, Exception):
            raise answer
        # Both ways through the wire encoding, as bytes would go.
        said = await answer(decode(encode(message), Request))
        return decode(encode(said), reply)


class World:
    def __init__(self, host, memory, network, ticket, bootstraps, local):
        self.host, self.memory, self.network = host, memory, network
        self.trust = Trust(SWARM, memory.floor())
        self.link = HostLink(ME, network, Place(ticket, bootstraps, local), memory, self.trust)
        self.record = record_of(ME)
        self.join = lambda: self.link.join(self.record)


def run(tmp_path, use, *, hosts=(HOME,), bootstraps=(), local=LOCAL, clock=None, up=True):
    """`use(world)` with a host that has published version 0 and answers at HOME."""

    async def main():
        memory = SwarmMemory.open(tmp_path / "memory.sqlite", SWARM)
        async with open_host(tmp_path, charter=charter_of(1)) as host:
            await host.publish(0)
            network = Network()
            if up:
                network.routes[HOME] = KEYS.node.peer
                network.answering[KEYS.node.peer] = lambda request: host.answers.answer(ME.peer, request)
            await use(World(host, memory, network, Ticket(SWARM, hosts=hosts), bootstraps, local))
        memory.close()

    trio.run(main, clock=clock)


def skipping():
    return trio.testing.MockClock(autojump_threshold=0)


async def until(condition):
    give_up = boottime() + 20.0
    while not condition():
        assert boottime() < give_up
        await trio.sleep(0.02)


def register(world, monkeypatch, *addresses, peer=KEYS.node.peer):
    """A bootstrap that answers every question with `addresses`."""
    world.network.routes[BOOTSTRAP] = NODES[3].peer

    async def discover(control, bootstrap, namespace, *, seconds):
        assert bootstrap == NODES[3].peer
        assert SWARM in namespace
        return [(peer, addresses)]

    monkeypatch.setattr(link_module, "discover", discover)


def test_joining_verifies_charter_roster_and_head_and_remembers_them(tmp_path):
    async def use(world):
        told = []
        world.link.on_charter = lambda: told.append("charter")
        world.link.on_roster = lambda roster: told.append(roster.epoch)
        await world.join()
        assert (world.link.host, world.link.is_member) == (KEYS.node.peer, True)
        assert ME.peer in world.host.members
        assert world.trust.is_fresh(boottime())
        assert world.trust.head.version == 0
        assert world.memory.charter() == charter_of(1)
        assert world.memory.floor() == Floor(Generation(1), Seq(1))
        assert told == ["charter", world.trust.roster.epoch]

    run(tmp_path, use)


def test_with_nowhere_to_look_the_owner_is_told_what_to_add(tmp_path):
    async def use(world):
        with pytest.raises(UsageError, match="nowhere to look") as refused:
            await world.join()
        assert "--bootstrap" in refused.value.hint

    run(tmp_path, use, hosts=())


def test_every_attempt_is_named_when_nobody_answers(tmp_path):
    async def use(world):
        with pytest.raises(UnreachableError) as refused:
            await world.join()
        assert f"{HOME}: connection refused" in str(refused.value)
        assert f"bootstrap {BOOTSTRAP}: connection refused" in str(refused.value)
        assert "aurora-host run" in refused.value.hint

    run(tmp_path, use, bootstraps=(BOOTSTRAP,), up=False)


@pytest.mark.parametrize(
    "address", ["/ip4/192.168.1.1/tcp/80/p2p/", "/ip4/127.0.0.1/tcp/22/p2p/", "/ip6/fe80::1/tcp/1/p2p/"]
)
def test_a_private_address_outside_the_local_networks_is_not_dialled_and_the_remedy_is_named(address, tmp_path):
    async def use(world):
        with pytest.raises(UsageError, match="allow it with --local CIDR"):
            await world.join()
        assert world.network.dialled == []

    run(tmp_path, use, hosts=(address + KEYS.node.peer,), local=("10.0.0.0/8",))


@pytest.mark.parametrize("address", ["/dns4/evil.example/tcp/80", "nonsense", "/ip4/127.0.0.1"])
def test_an_address_that_makes_no_sense_is_passed_over(address, tmp_path):
    async def use(world):
        await world.join()
        assert world.network.dialled == [HOME]

    run(tmp_path, use, hosts=(address, HOME))


def test_a_bare_swarm_id_finds_its_host_through_a_bootstrap(tmp_path, monkeypatch):
    async def use(world):
        register(world, monkeypatch, HOME)
        await world.join()
        assert world.link.host == KEYS.node.peer

    run(tmp_path, use, hosts=(), bootstraps=(BOOTSTRAP,))


def test_a_bootstrap_that_knows_no_host_or_speaks_nonsense_is_named(tmp_path, monkeypatch):
    async def use(world):
        register(world, monkeypatch)

        async def none(control, bootstrap, namespace, *, seconds):
            return []

        async def nonsense(control, bootstrap, namespace, *, seconds):
            raise WireError("a cut frame")

        for answer, said in ((none, "knows no host of this swarm"), (nonsense, "a cut frame")):
            monkeypatch.setattr(link_module, "discover", answer)
            with pytest.raises(UnreachableError, match=said):
                await world.join()

    run(tmp_path, use, hosts=(), bootstraps=(BOOTSTRAP,))


def test_a_bootstrap_cannot_aim_a_node_at_its_owners_own_network(tmp_path, monkeypatch):
    async def use(world):
        register(world, monkeypatch, "/ip4/192.168.0.1/tcp/80/p2p/" + KEYS.node.peer)
        with pytest.raises(UnreachableError, match="--local"):
            await world.join()
        assert world.network.dialled == [BOOTSTRAP]

    run(tmp_path, use, hosts=(), bootstraps=(BOOTSTRAP,))


async def stranger_refuses(request):
    return Refusal(Reason.WRONG_SWARM, "not\x1b[2J mine")


@pytest.mark.parametrize("answer", ["refusal", "forged", "revoked", "not the host", "nonsense", "silence"])
def test_whoever_answers_before_the_host_does_not_keep_a_node_from_it(answer, tmp_path):
    stranger = "/ip4/127.0.0.1/tcp/9/p2p/" + NODES[2].peer

    async def use(world):
        welcome = world.network.answering[KEYS.node.peer]

        async def forged(request):
            reply = await welcome(request)
            return structs.replace(reply, charter=charter_of(1, root=Identity(bytes(32))))

        async def revoked(request):
            reply = await welcome(request)
            return structs.replace(reply, charter=charter_of(0))

        async def nonsense(request):
            return Noted()

        answers = {
            "refusal": stranger_refuses,
            "forged": forged,
            "revoked": revoked,
            "not the host": welcome,
            "nonsense": nonsense,
            "silence": UnreachableError("no answer within 10 s"),
        }
        world.memory.raise_floor(Floor(Generation(1), Seq(0)))
        world.trust = world.link.trust = Trust(SWARM, world.memory.floor())
        world.network.routes[stranger] = NODES[2].peer
        world.network.answering[NODES[2].peer] = answers[answer]
        await world.join()
        assert world.link.host == KEYS.node.peer

    run(tmp_path, use, hosts=(stranger, HOME))


def test_a_host_that_says_no_is_quoted_clean_with_its_reason_and_status(tmp_path):
    async def use(world):
        world.network.answering[KEYS.node.peer] = stranger_refuses
        with pytest.raises(RefusedError, match=r"wrong swarm: not\?\[2J mine") as refused:
            await world.join()
        assert (refused.value.reason, refused.value.exit_status) == (Reason.WRONG_SWARM, 77)
        assert "ask for a new ticket" in refused.value.hint
        assert not world.link.is_member

    run(tmp_path, use)


def test_a_host_of_a_revoked_generation_is_told_apart_from_one_that_is_away(tmp_path):
    async def use(world):
        world.memory.raise_floor(Floor(Generation(2), Seq(0)))
        world.trust = world.link.trust = Trust(SWARM, world.memory.floor())
        with pytest.raises(StaleError, match="generation 1 was revoked by 2") as refused:
            await world.join()
        assert refused.value.exit_status == 75

    run(tmp_path, use)


def test_hosts_remembered_from_an_earlier_run_are_tried_without_ticket_or_bootstrap(tmp_path):
    async def use(world):
        host_record = record_of(KEYS.node, control=("/ip4/127.0.0.1/tcp/4100",))
        other = record_of(NODES[2], control=("/ip4/127.0.0.1/tcp/4999",))
        world.memory.remember([seal(KEYS.node, host_record), seal(NODES[2], other)])
        with pytest.raises(UsageError, match="nowhere to look"):
            await world.join()  # whose records they are is known only with a charter
        world.trust.adopt(charter_of(1))
        await world.join()
        assert world.network.dialled == [HOME]

    run(tmp_path, use, hosts=())


# ---- staying fresh


def test_a_member_stays_fresh_and_takes_newer_rosters(tmp_path):
    async def use(world):
        await world.join()
        first = world.trust.roster.epoch
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.link.stay_fresh, lambda: world.record)
            world.host.members.renew()
            await until(lambda: world.trust.roster.epoch > first)
            assert ME.peer in world.trust.roster
            await world.host.publish(1)
            await until(lambda: world.trust.head.version == 1)
            nursery.cancel_scope.cancel()

    run(tmp_path, use, clock=skipping())


@pytest.mark.parametrize("trouble", ["away", "stale", "refusing", "nonsense"])
def test_nothing_that_a_host_says_ends_a_member_and_it_joins_again_afterwards(trouble, tmp_path):
    async def use(world):
        await world.join()
        good = world.network.answering[KEYS.node.peer]
        asked = []

        async def stale_charter(request):
            asked.append(request)
            reply = await good(request)
            return structs.replace(reply, charter=charter_of(0)) if hasattr(reply, "charter") else reply

        async def refusing(request):
            asked.append(request)
            return Refusal(Reason.ROSTER_FULL, "full", 60.0)

        async def nonsense(request):
            asked.append(request)
            return Noted()

        async def away(request):
            asked.append(request)
            raise UnreachableError("gone")

        troubles = {"away": away, "stale": stale_charter, "refusing": refusing, "nonsense": nonsense}
        world.network.answering[KEYS.node.peer] = troubles[trouble]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.link.stay_fresh, lambda: world.record)
            await until(lambda: len(asked) > 8)
            assert not world.link.is_member
            world.network.answering[KEYS.node.peer] = good
            await until(lambda: world.link.is_member)
            nursery.cancel_scope.cancel()

    run(tmp_path, use, clock=skipping())


def test_a_host_that_forgot_its_members_is_joined_again_at_once_and_not_at_the_next_refresh(tmp_path):
    async def use(world):
        await world.join()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.link.stay_fresh, lambda: world.record)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            host = world.host  # started anew: the roster is in memory only
            fresh = type(host.members)(SWARM, KEYS.admit, Generation(1), host.members.epoch + 1000)
            host.answers = Answers(
                SWARM, KEYS, charter_of(1), Generation(1), fresh, host.pool_door, Output(as_json=True)
            )
            host.answers.newest = lambda: host.desk.newest
            reply = await world.link.ask_lease(lease_request(world), 15.0)
            assert reply.reason is Reason.NOT_A_MEMBER
            await until(lambda: ME.peer in fresh)
            assert trio.current_time() - began < 2.0
            nursery.cancel_scope.cancel()

    run(tmp_path, use, clock=skipping())


def test_a_publisher_that_contradicts_itself_is_reported_with_the_proof_and_nothing_is_fresh(tmp_path):
    async def use(world):
        proofs = []
        world.link.on_equivocation = proofs.append
        await world.join()
        newest = world.host.desk.newest
        world.host.desk.newest = dataclasses.replace(newest, artifact=bytes(32))
        with pytest.raises(StaleError, match="two artifacts with one number"):
            await world.link.challenge()
        assert len(proofs) == 1
        assert not world.trust.is_fresh(boottime())

    run(tmp_path, use)


# ---- work


def lease_request(world):
    newest = world.host.desk.newest
    request = LeaseRequest(
        world.link.new_nonce(), world.host.ledger.run, newest.version, newest.manifest_hash, newest.digest, 0.0, 8
    )
    return SignedLeaseRequest(seal(ME, request))


def test_a_lease_is_opened_worked_on_and_given_back(tmp_path):
    async def use(world):
        await world.join()
        await world.host.pool_door.handle(prompts_of(0, 4, 2))
        grant = await world.link.ask_lease(lease_request(world), 15.0)
        assert isinstance(grant, Grant)
        lease = world.link.open_lease(grant)
        assert lease.lessee == ME.peer
        receipts = await world.link.submit(Submit((finish(ME, lease, lease.samples[0]),), 1.0), 20.0)
        assert receipts.receipts[0].accepted
        await world.link.release(Release(lease.lease, lease.fencing))
        assert not world.host.pool.book.live
        await world.link.commit_failed(CommitFailed(lease.version, "bad memory"))

    run(tmp_path, use)


def test_a_lease_that_the_lease_key_did_not_sign_is_refused(tmp_path):
    async def use(world):
        await world.join()
        await world.host.pool_door.handle(prompts_of(0, 4, 2))
        grant = await world.link.ask_lease(lease_request(world), 15.0)
        forged = Grant(seal(KEYS.node, world.link.open_lease(grant)), grant.head)
        with pytest.raises(WireError, match="may not sign it"):
            world.link.open_lease(forged)

    run(tmp_path, use)


def test_a_lease_with_a_head_over_another_nonce_is_refused(tmp_path):
    async def use(world):
        await world.join()
        await world.host.pool_door.handle(prompts_of(0, 4, 2))
        good = world.network.answering[KEYS.node.peer]

        async def replayed(request):
            grant = await good(request)
            return Grant(grant.lease, world.host.answers.head(b"x" * 32))

        world.network.answering[KEYS.node.peer] = replayed
        with pytest.raises(WireError, match="answers no challenge of ours"):
            await world.link.ask_lease(lease_request(world), 15.0)

    run(tmp_path, use)


@pytest.mark.parametrize("call", ["ask_lease", "submit", "challenge", "refresh_roster"])
def test_an_answer_of_the_wrong_kind_is_a_wire_error(call, tmp_path):
    async def use(world):
        await world.join()

        async def noted(request):
            return Noted()

        world.network.answering[KEYS.node.peer] = noted
        submit = Submit((seal(ME, record_of(ME)),), 0.0)
        arguments = {"ask_lease": (lease_request(world), 15.0), "submit": (submit, 20.0)}.get(call, ())
        with pytest.raises(WireError, match="Noted"):
            await getattr(world.link, call)(*arguments)

    run(tmp_path, use)


def test_telling_the_host_of_a_failed_commit_never_fails(tmp_path):
    async def use(world):
        await world.link.commit_failed(CommitFailed(0, "no host yet"))
        with pytest.raises(UnreachableError, match="no host is known yet"):
            await world.link.challenge()

    run(tmp_path, use)
