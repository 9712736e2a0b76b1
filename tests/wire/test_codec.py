"""Any bytes decode to a value within its limits or raise WireError, never anything else."""

from __future__ import annotations

import contextlib
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import SignatureError, WireError
from aurora_p2p.types import ArtifactId, Epoch, Generation, ManifestHash, Seq, SwarmId, Version
from aurora_p2p.wire import bulk, control, engine, exchange, manifest, trainer, trust
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.signed import Signed, open_signed, seal

UNIONS = [
    control.Request,
    control.Reply,
    exchange.ExchangeFrame,
    bulk.BulkCommand,
    bulk.BulkEvent,
    engine.EngineRequest,
    engine.EngineReply,
    trainer.TrainerRequest,
    trainer.HostReply,
    manifest.Header,
    manifest.Page,
    manifest.FinalPage,
    trust.Charter,
    trust.Roster,
    Signed,
]
ROOT = Identity(b"\x01" * 32)


def head(nonce: bytes = b"") -> trust.Head:
    return trust.Head(
        SwarmId(ROOT.peer),
        nonce,
        Generation(1),
        Epoch(2),
        Seq(3),
        Version(4),
        ArtifactId(b"a" * 32),
        ManifestHash(b"m" * 32),
        1,
    )


@pytest.mark.parametrize("kind", UNIONS, ids=str)
@given(data=st.binary(max_size=400))
def test_any_bytes_decode_or_raise_wire_error(kind: type[object], data: bytes) -> None:
    try:
        value = decode(data, kind)
    except WireError:
        return
    assert decode(encode(value), kind) == value


@given(cut=st.integers(0, 10**6), flip=st.integers(0, 10**6))
def test_damaged_messages_decode_or_raise_wire_error(cut: int, flip: int) -> None:
    challenge = encode(control.HeadAnswer(trust.Charter(seal(ROOT, head())), seal(ROOT, head(b"n" * 32))))
    damaged = bytearray(challenge)
    damaged[flip % len(damaged)] ^= 1 << (flip % 8)
    for data in (challenge[: cut % len(challenge)], bytes(damaged)):
        with contextlib.suppress(WireError):
            decode(data, control.Reply)


def test_a_claimed_array_of_four_billion_entries_costs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WireError):
        decode(b"\x93\xa4have\xc4\x20" + b"a" * 32 + b"\xdd\xff\xff\xff\xff", exchange.ExchangeFrame)
    with pytest.raises(WireError):
        decode(b"\x93\xa4have\xc6\xff\xff\xff\xff", exchange.ExchangeFrame)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_message_over_its_limit_is_refused_before_decoding() -> None:
    with pytest.raises(WireError, match="limit"):
        decode(encode(control.Challenge(b"n" * 32)), control.Request, limit=8)


def test_unknown_fields_and_tags_are_refused() -> None:
    with pytest.raises(WireError):
        decode(encode(["challenge", b"n" * 32, 1]), control.Request)
    with pytest.raises(WireError):
        decode(encode(["nonsense"]), control.Request)


def test_a_sealed_value_opens_for_its_signer_only() -> None:
    signed = seal(ROOT, head())
    assert open_signed(signed, trust.Head, {ROOT.peer}) == head()
    with pytest.raises(SignatureError, match="may not sign"):
        open_signed(signed, trust.Head, {Identity(b"\x02" * 32).peer})


def test_a_signature_cannot_be_lent_to_another_domain_body_or_signer() -> None:
    signed = seal(ROOT, head())
    other = Identity(b"\x02" * 32)
    with pytest.raises(SignatureError):
        open_signed(signed, trust.Abort, {ROOT.peer})
    with pytest.raises(SignatureError):
        open_signed(Signed(ROOT.peer, signed.body + b"\0", signed.signature), trust.Head, {ROOT.peer})
    with pytest.raises(SignatureError):
        open_signed(Signed(other.peer, signed.body, signed.signature), trust.Head, None)


def test_equal_values_give_equal_bytes() -> None:
    assert encode(head(b"x")) == encode(head(b"x"))
    assert encode(head(b"x")) != encode(head(b"y"))
