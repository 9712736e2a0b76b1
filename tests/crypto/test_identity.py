from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.crypto.identity import _SMALL_ORDER, Identity, peer_id_of, public_key_of, verify
from aurora_p2p.crypto.roles import RoleKeys
from aurora_p2p.crypto.sign import fields
from aurora_p2p.errors import StoreError, UsageError, WireError

SEED = bytes(range(32))


def test_the_peer_id_is_the_one_libp2p_derives() -> None:
    # RFC 8032 test 1's public key; id as py-libp2p prints it.
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert peer_id_of(public) == "12D3KooWQK1wnefoLrcVHbbnf5tLzbopUd3K3bFAoJpA7YJgL5pV"
    assert public_key_of(peer_id_of(public)) == public


def test_a_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    identity = Identity(SEED)
    identity.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load(path).peer == identity.peer
    with pytest.raises(StoreError):
        Identity.generate().save(path)
    assert Identity.load(path).peer == identity.peer


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    Identity(SEED).save(path)
    path.chmod(0o644)
    with pytest.raises(UsageError) as caught:
        Identity.load(path)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe", b"aurora-p2p ed25519 seed\nabc\n"])
def test_a_damaged_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StoreError, match=r"node\.key"):
        Identity.load(path)


def test_secrets_never_show() -> None:
    assert SEED.hex() not in repr(Identity(SEED))


@given(text=st.text(max_size=80))
def test_any_text_is_a_peer_id_or_a_wire_error(text: str) -> None:
    try:
        public_key_of(text)
    except WireError:
        return
    assert peer_id_of(public_key_of(text)) == text


@given(message=st.binary(max_size=64), flip=st.integers(0, 511))
def test_a_changed_signature_does_not_verify(message: bytes, flip: int) -> None:
    identity = Identity(SEED)
    signature = bytearray(identity.sign(message))
    assert verify(identity.peer, bytes(signature), message)
    signature[flip // 8] ^= 1 << flip % 8
    assert not verify(identity.peer, bytes(signature), message)


@given(a=st.lists(st.binary(max_size=8), max_size=4), b=st.lists(st.binary(max_size=8), max_size=4))
def test_length_prefixed_fields_are_injective(a: list[bytes], b: list[bytes]) -> None:
    assert (fields(*a) == fields(*b)) == (a == b)


def test_missing_role_keys_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        RoleKeys.load(tmp_path)
    assert "aurora-host init" in caught.value.hint
    created = RoleKeys.create(tmp_path)
    assert RoleKeys.load(tmp_path).publish.peer == created.publish.peer


P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def order_divides_8(encoded: bytes) -> bool:
    """RFC 8032 arithmetic on the curve: decode y, recover x, double three times."""
    y = int.from_bytes(encoded, "little") % 2**255 % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - square) % P == 0, "not on the curve"
    for _ in range(3):
        cross, product = x * y, D * x * x * y * y
        x, y = 2 * cross * pow(1 + product, -1, P) % P, (y * y + x * x) * pow(1 - product, -1, P) % P
    return (x, y) == (0, 1)


@pytest.mark.parametrize("sign", [0x00, 0x80])
@pytest.mark.parametrize("point", sorted(_SMALL_ORDER), ids=bytes.hex)
def test_a_key_that_anybody_can_sign_for_is_no_identity(point: bytes, sign: int) -> None:
    assert order_divides_8(point)
    weak = peer_id_of(bytes((*point[:31], point[31] | sign)))
    with pytest.raises(WireError, match="anybody"):
        public_key_of(weak)
    assert not verify(weak, bytes(64), b"message")
    assert not verify(weak, point + bytes(32), b"message")


def test_an_honest_key_is_not_of_small_order() -> None:
    assert not order_divides_8(Identity(SEED).public_key)
