import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.lease.admission import Accepted, Prior, Standing, judge
from aurora_p2p.lease.terms import lease_message, lease_record
from aurora_p2p.types import LeaseId, StateDigest, Step
from aurora_p2p.wire.codec import decode, hash_of
from aurora_p2p.wire.control import LeaseRequest, Reason, SampleResult
from aurora_p2p.wire.signed import Signed, seal
from tests.lease.world import NODES, RUN, SAMPLING, SECRET, STOP, digest_of, finish, manifest_of, prompts_of

NODE, OTHER = NODES[:2]
REQUEST = LeaseRequest(bytes(32), RUN, 6, manifest_of(6), digest_of(6), 0.0, 8)
WORK = prompts_of(7, 2, 2)
RECORD = lease_record(SECRET, 41, NODE.peer, REQUEST, [(0, 0), (0, 1), (1, 0)], WORK)
LEASE = lease_message(RUN, RECORD, WORK)
SAMPLE = LEASE.samples[1]
SEEDS = {(sample.prompt, sample.sample): sample.seed for sample in LEASE.samples}
STANDING = Standing(RECORD, SEEDS, SAMPLING, digest_of(6), None)


def verdict(signed, standing=STANDING, *, max_lag=1):
    return judge(signed, decode(signed.body, SampleResult), standing, run=RUN, max_lag=max_lag)


def of(**changes):
    return verdict(finish(NODE, LEASE, SAMPLE, **changes))


def test_an_honest_result_is_admitted():
    assert of() is Accepted.NEW
    assert of(tokens=(5, 6, 7, 8), logprobs=(-1.0,) * 4, finish="length") is Accepted.NEW
    assert of(tokens=(5, 6, 7, STOP), logprobs=(-1.0,) * 4, finish="stop") is Accepted.NEW


@pytest.mark.parametrize("reason", [Reason.LEASE_UNKNOWN, Reason.LEASE_EXPIRED, Reason.LEASE_SPENT, Reason.TOO_LATE])
def test_without_a_live_lease_the_refusal_says_what_became_of_it(reason):
    assert verdict(finish(NODE, LEASE, SAMPLE), Standing(reason, {}, None, None, None)) is reason


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (Reason.FENCED, {"fencing": 40}),
        (Reason.FENCED, {"fencing": 42}),
        (Reason.WRONG_RUN, {"run": b"x" * 16}),
        (Reason.LAG, {"version": 5}),
        (Reason.LAG, {"version": 8}),
        (Reason.WRONG_MANIFEST, {"version": 7}),
        (Reason.WRONG_MANIFEST, {"manifest_hash": manifest_of(7)}),
        (Reason.WRONG_DIGEST, {"digest": digest_of(7)}),
        (Reason.NOT_IN_LEASE, {"sample": 7}),
        (Reason.NOT_IN_LEASE, {"prompt": 1, "sample": 1}),
        (Reason.NOT_IN_LEASE, {"target_step": 6}),
        (Reason.WRONG_SEED, {"seed": SAMPLE.seed ^ 1}),
        (Reason.BAD_TOKENS, {"tokens": (), "logprobs": ()}),
        (Reason.BAD_TOKENS, {"tokens": (5, 64, STOP)}),
        (Reason.BAD_TOKENS, {"tokens": (5, 5, 5, 5, STOP), "logprobs": (-1.0,) * 5}),
        (Reason.BAD_LOGPROBS, {"logprobs": (-1.0, -1.0)}),
        (Reason.BAD_LOGPROBS, {"logprobs": (-1.0, math.nan, -1.0)}),
        (Reason.BAD_LOGPROBS, {"logprobs": (-1.0, -math.inf, -1.0)}),
        (Reason.BAD_LOGPROBS, {"logprobs": (-1.0, math.inf, -1.0)}),
        (Reason.BAD_LOGPROBS, {"logprobs": (-1.0, 1e-7, -1.0)}),
        (Reason.BAD_FINISH, {"tokens": (5, 6, 7)}),
        (Reason.BAD_FINISH, {"tokens": (5, STOP, STOP)}),
        (Reason.BAD_FINISH, {"finish": "length"}),
        (Reason.BAD_FINISH, {"tokens": (5, 6, 7), "finish": "length"}),
        (Reason.BAD_FINISH, {"tokens": (5, 6, 7, STOP), "logprobs": (-1.0,) * 4, "finish": "length"}),
    ],
)
def test_each_fault_is_refused_by_its_name(reason, changes):
    assert of(**changes) is reason


def test_only_the_lessee_may_answer():
    assert verdict(finish(OTHER, LEASE, SAMPLE)) is Reason.NOT_THE_LESSEE


def test_a_result_that_somebody_changed_after_signing_is_refused():
    good, edited = finish(NODE, LEASE, SAMPLE), finish(NODE, LEASE, SAMPLE, tokens=(9, 6, STOP))
    assert verdict(Signed(good.signer, edited.body, good.signature)) is Reason.BAD_SIGNATURE


def test_the_signature_is_checked_last():
    forged = Signed(NODE.peer, finish(NODE, LEASE, SAMPLE, digest=digest_of(9)).body, bytes(64))
    assert verdict(forged) is Reason.WRONG_DIGEST


def test_a_version_published_anew_with_other_weights_refuses_the_old_ones():
    for published in (digest_of(9), None):
        standing = Standing(RECORD, SEEDS, SAMPLING, published, None)
        assert verdict(finish(NODE, LEASE, SAMPLE), standing) is Reason.WRONG_DIGEST


def test_lag_zero_refuses_what_lag_one_allows():
    assert verdict(finish(NODE, LEASE, SAMPLE), max_lag=0) is Reason.LAG


def test_the_same_body_again_is_acknowledged_and_another_body_is_a_duplicate():
    signed = finish(NODE, LEASE, SAMPLE)
    spent = Standing(Reason.LEASE_SPENT, {}, None, None, Prior(RECORD.lease, NODE.peer, hash_of(signed.body)))
    assert verdict(signed, spent) is Accepted.AGAIN
    assert verdict(finish(NODE, LEASE, SAMPLE, tokens=(9, 6, STOP)), spent) is Reason.DUPLICATE


def test_a_copy_of_what_was_admitted_is_not_acknowledged_to_the_copier():
    signed = finish(NODE, LEASE, SAMPLE)
    copy = seal(OTHER, decode(signed.body, SampleResult))
    prior = Prior(RECORD.lease, NODE.peer, hash_of(signed.body))
    for standing in (Standing(Reason.LEASE_SPENT, {}, None, None, prior), replace(STANDING, prior=prior)):
        assert verdict(copy, standing) is Reason.NOT_THE_LESSEE
        assert verdict(signed, standing) is Accepted.AGAIN


def test_a_sample_admitted_under_another_lease_is_a_duplicate():
    prior = Prior(LeaseId(bytes(16)), NODE.peer, bytes(32))
    assert (
        verdict(finish(NODE, LEASE, SAMPLE), Standing(RECORD, SEEDS, SAMPLING, digest_of(6), prior)) is Reason.DUPLICATE
    )


anything = st.fixed_dictionaries(
    {},
    optional={
        "fencing": st.integers(0, 2**62),
        "target_step": st.sampled_from([Step(6), Step(7), Step(8)]),
        "prompt": st.integers(0, 3),
        "sample": st.integers(0, 3),
        "seed": st.sampled_from([*SEEDS.values(), 0, 2**63 - 1]),
        "version": st.integers(5, 8),
        "digest": st.sampled_from([digest_of(6), StateDigest(bytes(32))]),
        "tokens": st.lists(st.integers(0, 70), max_size=5).map(tuple),
        "logprobs": st.lists(st.floats(), max_size=5).map(tuple),
        "finish": st.sampled_from(["stop", "length"]),
    },
)


@given(anything)
def test_whatever_is_admitted_keeps_every_promise_of_the_lease(changes):
    signed = finish(NODE, LEASE, SAMPLE, **changes)
    result = decode(signed.body, SampleResult)
    if verdict(signed) is not Accepted.NEW:
        return
    assert (result.fencing, result.version, result.digest) == (41, 6, digest_of(6))
    assert SEEDS[result.prompt, result.sample] == result.seed
    assert len(result.tokens) == len(result.logprobs) <= SAMPLING.max_tokens
    assert all(token < SAMPLING.vocabulary for token in result.tokens)
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in result.logprobs)
    assert (result.tokens[-1] == STOP) == (result.finish == "stop")
