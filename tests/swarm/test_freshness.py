import pytest

from aurora_p2p.errors import SignatureError, StaleError, WireError
from aurora_p2p.swarm.freshness import HEAD_TTL_SECONDS, MAX_NONCES, Trust
from aurora_p2p.types import ArtifactId, Epoch, Generation, ManifestHash, Seq, Version
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trust import Abort, Charter, Delegation, Equivocation, Floor, Head, Roster, Succession
from tests.swarm.world import ADMIT, HOST, LEASE, PUBLISH, ROOT, SWARM, charter, identity

NONCE = bytes(range(32))


def head(
    *, nonce: bytes = NONCE, generation: int = 1, epoch: int = 0, seq: int = 5, artifact: int = 0, min_wire: int = 1
) -> Signed:
    value = Head(
        SWARM,
        nonce,
        Generation(generation),
        Epoch(epoch),
        Seq(seq),
        Version(seq),
        ArtifactId(bytes([artifact]) * 32),
        ManifestHash(bytes([artifact]) * 32),
        min_wire,
    )
    return seal(PUBLISH, value)


@pytest.fixture
def trust() -> Trust:
    trust = Trust(SWARM)
    assert trust.adopt(charter())
    return trust


def test_nothing_is_believed_before_a_charter() -> None:
    with pytest.raises(StaleError):
        Trust(SWARM).answer(head(), now=0.0)


def test_an_answer_makes_us_fresh_from_the_sending_of_the_nonce_for_the_ttl(trust: Trust) -> None:
    trust.challenge(NONCE, now=10.0)
    assert not trust.is_fresh(10.0)
    trust.answer(head(), now=50.0)
    assert trust.is_fresh(10.0 + HEAD_TTL_SECONDS)
    assert not trust.is_fresh(10.1 + HEAD_TTL_SECONDS)


def test_a_replayed_answer_is_refused(trust: Trust) -> None:
    trust.challenge(NONCE, now=0.0)
    trust.answer(head(), now=1.0)
    with pytest.raises(WireError, match="no challenge of ours"):
        trust.answer(head(), now=2.0)


def test_an_answer_to_a_nonce_older_than_the_ttl_is_refused(trust: Trust) -> None:
    trust.challenge(NONCE, now=0.0)
    with pytest.raises(StaleError):
        trust.answer(head(), now=HEAD_TTL_SECONDS + 1)


def test_nonces_are_bounded(trust: Trust) -> None:
    trust.challenge(NONCE, now=0.0)
    for number in range(MAX_NONCES):
        trust.challenge(number.to_bytes(32, "big"), now=0.0)
    with pytest.raises(WireError, match="no challenge of ours"):
        trust.answer(head(), now=0.0)


def test_a_hint_makes_nothing_fresh_but_moves_the_floor(trust: Trust) -> None:
    trust.hint(head(nonce=b""))
    assert not trust.is_fresh(0.0)
    assert trust.floor == Floor(Generation(1), Seq(5))
    with pytest.raises(StaleError, match="seq 4"):
        trust.hint(head(nonce=b"", seq=4))


def test_the_floor_survives_a_restart() -> None:
    trust = Trust(SWARM, Floor(Generation(2), Seq(9)))
    with pytest.raises(StaleError, match="revoked"):
        trust.adopt(charter(1))
    trust.adopt(charter(2))
    with pytest.raises(StaleError, match="seq 8"):
        trust.hint(head(nonce=b"", generation=2, seq=8))


def test_the_roster_epoch_of_a_head_never_goes_back(trust: Trust) -> None:
    trust.hint(head(epoch=3))
    with pytest.raises(StaleError, match="epoch 2"):
        trust.hint(head(epoch=2, seq=6))


def test_two_heads_with_one_seq_are_proof_and_end_freshness_until_a_higher_generation(trust: Trust) -> None:
    trust.challenge(NONCE, now=0.0)
    trust.answer(head(), now=0.0)
    proof = trust.hint(head(nonce=b"", artifact=1))
    assert isinstance(proof, Equivocation)
    assert not trust.is_fresh(0.0)
    trust.adopt(charter(2))
    trust.challenge(NONCE, now=1.0)
    trust.answer(head(generation=2), now=1.0)
    assert trust.is_fresh(1.0)


def test_a_higher_generation_recovers_from_a_stolen_key_that_signed_the_highest_seq(trust: Trust) -> None:
    trust.hint(head(seq=2**62))
    trust.adopt(charter(2))
    assert trust.floor == Floor(Generation(2), Seq(0))
    trust.hint(head(generation=2, seq=6))
    with pytest.raises(StaleError, match="generation 1"):
        trust.hint(head(seq=2**62))


def test_a_charter_is_news_once_and_never_goes_back(trust: Trust) -> None:
    assert not trust.adopt(charter())
    assert trust.adopt(charter(3))
    with pytest.raises(StaleError):
        trust.adopt(charter(2))
    with pytest.raises(StaleError, match="two delegations"):
        trust.adopt(charter(3, publish=identity("other")))


def test_a_delegation_by_another_root_is_refused() -> None:
    delegation = Delegation(SWARM, Generation(1), PUBLISH.peer, ADMIT.peer, LEASE.peer, (HOST,))
    with pytest.raises(SignatureError):
        Trust(SWARM).adopt(Charter(seal(identity("mallory"), delegation)))


def test_a_succession_chain_leads_to_the_new_root_and_the_old_one_is_silenced(trust: Trust) -> None:
    second, third = identity("second"), identity("third")
    chain = (seal(ROOT, Succession(SWARM, 1, second.peer)), seal(second, Succession(SWARM, 2, third.peer)))
    delegation = Delegation(SWARM, Generation(2), PUBLISH.peer, ADMIT.peer, LEASE.peer, (HOST,))
    assert trust.adopt(Charter(seal(third, delegation), chain))
    with pytest.raises(StaleError, match="succeeded"):
        trust.adopt(charter(3))
    with pytest.raises(SignatureError):
        trust.adopt(Charter(seal(second, delegation), chain))
    with pytest.raises(WireError, match="out of place"):
        trust.adopt(Charter(seal(third, delegation), (seal(ROOT, Succession(SWARM, 2, third.peer)),)))


def test_a_head_that_needs_a_newer_wire_version_says_how_to_upgrade(trust: Trust) -> None:
    with pytest.raises(WireError) as error:
        trust.hint(head(min_wire=2))
    assert "upgrade" in error.value.hint


def test_a_roster_of_another_generation_is_refused(trust: Trust) -> None:
    signed = seal(ADMIT, Roster(SWARM, Generation(1), Epoch(1), ()))
    assert trust.take_roster(signed).epoch == 1
    with pytest.raises(StaleError, match="generation 2"):
        trust.take_roster(seal(ADMIT, Roster(SWARM, Generation(2), Epoch(2), ())))
    assert trust.roster is not None
    assert trust.roster.epoch == 1


def test_an_abort_needs_the_publish_key(trust: Trust) -> None:
    abort = Abort(SWARM, Seq(3), ArtifactId(bytes(32)))
    assert trust.open_abort(seal(PUBLISH, abort)) == abort
    with pytest.raises(SignatureError):
        trust.open_abort(seal(ADMIT, abort))
