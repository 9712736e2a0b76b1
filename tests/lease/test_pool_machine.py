"""Any interleaving of what can happen to a pool, with restarts from the ledger alone."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from aurora_p2p.lease.admission import lag_allowed
from aurora_p2p.lease.events import Forget, From, SampleAdmitted
from aurora_p2p.wire.codec import decode
from aurora_p2p.wire.control import Lease, Release, Renew, Renewed, SampleResult
from aurora_p2p.wire.signed import Signed, open_signed, seal
from aurora_p2p.wire.trainer import Rollouts
from tests.lease.world import NODES, World, digest_of, finish, manifest_of

nodes = st.sampled_from(NODES)


class PoolMachine(RuleBasedStateMachine):
    leases = Bundle("leases")
    sent = Bundle("sent")

    make_world = World

    def __init__(self):
        super().__init__()
        self.world = self.make_world(
            max_renewals=1000, min_lease_seconds=2.0, max_lease_seconds=20.0, active_seconds=5.0
        )
        self.version = 0
        self.highest_fencing = 0
        self.deadlines = {}
        """Lease -> when its lessee must be done, as the host promised last (a restart promises anew)."""
        self.admitted = {}
        self.submitted = {}
        self.next_step = 0

    @initialize()
    def first_version(self):
        self.world.publish(0)

    @rule(prompts=st.integers(1, 3), group=st.integers(1, 4))
    def submit(self, prompts, group):
        self.next_step = max(self.next_step, self.version)
        self.world.submit_prompts(self.next_step, prompts, group)
        self.submitted[self.next_step] = prompts * group
        self.next_step += 1

    @rule()
    def publish(self):
        """The trainer publishes version v after it took step v - 1, or gave up on it."""
        self.version += 1
        self.world.publish(self.version)

    @rule(target=leases, node=nodes, lag=st.integers(0, 2), samples=st.integers(1, 6))
    def ask(self, node, lag, samples):
        lease = self.world.ask(node, max(0, self.version - lag), samples=samples)
        if not isinstance(lease, Lease):
            return multiple()
        assert lease.fencing > self.highest_fencing
        assert lag_allowed(lease.target_step, lease.version, 1)
        assert lease.target_step >= self.version
        for sample in lease.samples:
            assert (lease.target_step, sample.prompt, sample.sample) not in self.admitted
        self.highest_fencing = lease.fencing
        self.deadlines[lease.lease] = self.world.now + lease.seconds
        return (node, lease)

    @rule(target=sent, held=leases, choice=st.integers(0, 5), faulty=st.integers(0, 9))
    def finish(self, held, choice, faulty):
        node, lease = held
        sample = lease.samples[choice % len(lease.samples)]
        faults = [{"digest": digest_of(99)}, {"manifest_hash": manifest_of(99)}, {"seed": 1}, {"fencing": 0}]
        signed = finish(node, lease, sample, **(faults[faulty] if faulty < len(faults) else {}))
        if faulty == 4:
            signed = Signed(signed.signer, signed.body, bytes(64))
        self.deliver(signed)
        return signed

    @rule(signed=sent)
    def resend(self, signed):
        self.deliver(signed)

    @rule(signed=sent, thief=nodes)
    def steal(self, signed, thief):
        self.deliver(Signed(thief.peer, signed.body, signed.signature))

    @rule(signed=sent, thief=nodes)
    def copy(self, signed, thief):
        """A member signs what another one found; with its own results it is the same as sending them again."""
        self.deliver(seal(thief, decode(signed.body, SampleResult)))

    @rule(signed=sent, thief=nodes)
    def hand_in(self, signed, thief):
        """A member sends what another one signed, as it is."""
        if thief.peer == signed.signer:
            return
        before = self.world.pool.fleet.node(signed.signer).refused.total()
        (receipt,) = self.world.send(thief.peer, signed)
        assert not receipt.accepted
        assert self.world.pool.fleet.node(signed.signer).refused.total() == before

    @rule(node=nodes, samples=st.integers(1, 6))
    def crash_before_a_grant_is_durable(self, node, samples):
        """Decided, and nowhere but in memory: the node never hears of the lease, and its samples are open again."""
        with self.world.lost():
            self.world.ask(node, self.version, samples=samples)
        self.restarted()

    @rule(held=leases, choice=st.integers(0, 5))
    def crash_before_a_result_is_durable(self, held, choice):
        """No receipt was sent, so the node sends it again, and it counts once."""
        node, lease = held
        signed = finish(node, lease, lease.samples[choice % len(lease.samples)])
        with self.world.lost():
            self.world.send(node.peer, signed)
        self.restarted()
        self.deliver(signed)

    def deliver(self, signed):
        before = len(self.world.ledger)
        (receipt,) = self.world.send(signed.signer, signed)
        new = [record for record in self.world.ledger[before:] if isinstance(record, SampleAdmitted)]
        result = decode(signed.body, SampleResult)
        key = (result.target_step, result.prompt, result.sample)
        if not new:
            mine = self.admitted.get(key) == (signed.signer, signed.body)
            assert receipt.accepted == (mine and self.still_known(result.target_step))
            return
        assert receipt.accepted
        assert key not in self.admitted
        assert self.world.now < self.deadlines[result.lease]
        assert lag_allowed(result.target_step, result.version, 1)
        assert result.target_step >= self.version
        assert (result.manifest_hash, result.digest) == (manifest_of(result.version), digest_of(result.version))
        open_signed(signed, SampleResult, {signed.signer})
        self.admitted[key] = (signed.signer, signed.body)

    def still_known(self, step):
        return step >= self.version - 1

    @rule(held=consumes(leases))
    def release(self, held):
        node, lease = held
        self.world.handle(From(node.peer, Release(lease.lease, lease.fencing)))
        self.deadlines[lease.lease] = -1.0

    @rule(held=leases)
    def renew(self, held):
        node, lease = held
        reply = self.world.handle(From(node.peer, Renew(lease.lease, lease.fencing)))
        assert isinstance(reply, Renewed) == (lease.lease in self.world.pool.book.live)
        if isinstance(reply, Renewed):
            self.deadlines[lease.lease] = self.world.now + reply.seconds

    @rule(node=nodes)
    def forget(self, node):
        self.world.handle(Forget(node.peer))

    @rule(seconds=st.floats(0, 25))
    def wait(self, seconds):
        self.world.wait(seconds)

    @rule()
    def crash(self):
        live = set(self.world.pool.book.live)
        self.world.restart()
        assert set(self.world.pool.book.live) == live
        self.restarted()

    def restarted(self):
        for lease in self.world.pool.book.live.values():
            self.deadlines[lease.terms.lease] = lease.deadline

    @invariant()
    def every_sample_is_in_exactly_one_state(self):
        book = self.world.pool.book
        for step, work in book.steps.items():
            is_open = {(prompt, sample) for prompt, samples in work.open.items() for sample in samples}
            leased = [slot for lease in book.live.values() if lease.terms.step == step for slot in lease.seeds]
            assert len(leased) == len(set(leased))
            assert is_open.isdisjoint(leased)
            assert work.admitted.keys().isdisjoint(is_open | set(leased))
            assert work.open_samples() == len(is_open)
            assert len(is_open) + len(leased) + len(work.admitted) == self.submitted[step]
            assert sum(work.by_peer.values()) == len(leased) + len(work.admitted)

    @invariant()
    def what_was_acknowledged_is_what_the_trainer_gets(self):
        for step in range(self.version, self.next_step):
            mine = {key[1:] for key in self.admitted if key[0] == step}
            answer = self.world.take(step)
            if isinstance(answer, Rollouts):
                assert {(sample.prompt, sample.sample) for sample in answer.samples} == mine
                assert all(lag_allowed(step, sample.version, 1) for sample in answer.samples)
            elif step in self.submitted:
                assert answer.admitted == len(mine)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_interleaving_admits_each_sample_at_most_once = PoolMachine.TestCase
