import pytest

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import SignatureError, StaleError, WireError
from aurora_p2p.swarm.roster import open_record, open_roster
from aurora_p2p.types import Epoch, Generation, PeerId, SwarmId
from aurora_p2p.wire.signed import Signed, seal
from aurora_p2p.wire.trust import Member, PeerRecord, Roster
from tests.swarm.world import ADMIT, SWARM, identity

ANNA, BERT = identity("anna"), identity("bert")


def record(who: Identity, *, names: PeerId | None = None, swarm: SwarmId = SWARM) -> Signed:
    return seal(who, PeerRecord(swarm, names or who.peer, 1, (), ("127.0.0.1:4100",), 1000))


def roster(*records: Signed, generation: int = 1, epoch: int = 1, key: Identity = ADMIT) -> Signed:
    members = tuple(Member(signed, 0, False) for signed in records)
    return seal(key, Roster(SWARM, Generation(generation), Epoch(epoch), members))


def test_a_roster_opens_to_its_members_and_their_addresses() -> None:
    view = open_roster(roster(record(ANNA), record(BERT)), swarm=SWARM, admit=ADMIT.peer)
    assert len(view) == 2
    assert ANNA.peer in view
    assert view.bulk_addresses(BERT.peer) == ("127.0.0.1:4100",)
    assert view.bulk_addresses(identity("stranger").peer) == ()


@pytest.mark.parametrize(
    "signed",
    [
        roster(record(ANNA), key=identity("mallory")),
        roster(record(ANNA, names=BERT.peer)),
        roster(record(ANNA, swarm=SwarmId(str(BERT.peer)))),
        roster(record(ANNA), record(ANNA)),
        seal(ADMIT, Roster(SwarmId(str(BERT.peer)), Generation(1), Epoch(1), ())),
    ],
    ids=["wrong key", "foreign record", "record of another swarm", "twice", "another swarm"],
)
def test_a_roster_that_does_not_verify_is_refused_whole(signed: Signed) -> None:
    with pytest.raises(WireError):
        open_roster(signed, swarm=SWARM, admit=ADMIT.peer)


def test_a_tampered_record_is_refused() -> None:
    good = record(ANNA)
    with pytest.raises(SignatureError):
        open_record(Signed(good.signer, good.body, bytes(64)), swarm=SWARM)


@pytest.mark.parametrize(
    ("generation", "epoch", "accepted"), [(1, 3, True), (2, 0, True), (1, 2, False), (0, 9, False)]
)
def test_generation_and_epoch_never_go_back(generation: int, epoch: int, accepted: bool) -> None:
    known = open_roster(roster(record(ANNA), epoch=2), swarm=SWARM, admit=ADMIT.peer)
    offered = roster(record(BERT), generation=generation, epoch=epoch)
    if accepted:
        assert BERT.peer in open_roster(offered, swarm=SWARM, admit=ADMIT.peer, newer_than=known)
    else:
        with pytest.raises(StaleError):
            open_roster(offered, swarm=SWARM, admit=ADMIT.peer, newer_than=known)


def test_the_same_roster_is_accepted_again() -> None:
    signed = roster(record(ANNA))
    known = open_roster(signed, swarm=SWARM, admit=ADMIT.peer)
    assert open_roster(signed, swarm=SWARM, admit=ADMIT.peer, newer_than=known).epoch == known.epoch
