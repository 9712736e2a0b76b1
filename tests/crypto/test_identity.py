from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.crypto.identity import Identity, peer_id_of, public_key_of, verify
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
