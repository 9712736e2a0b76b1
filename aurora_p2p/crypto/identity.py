"""Ed25519 identities and their libp2p peer ids.

A peer id here is always the identity multihash of the protobuf-encoded public key (libp2p peer-ids spec), so the id
contains the key and nothing has to be looked up to check a signature.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aurora_p2p.errors import StoreError, UsageError, WireError
from aurora_p2p.types import PeerId

_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash (0x00), 36 bytes, protobuf PublicKey{Type=Ed25519, Data=32 bytes}."""
_SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""Encodings, without the sign bit, of the points whose order divides 8: a signature under one proves nothing, since
anybody can make it (RFC 8032 leaves the check to the application)."""
_KEY_HEADER = "aurora-p2p ed25519 seed\n"


def peer_id_of(public_key: bytes) -> PeerId:
    """Peer id of a raw Ed25519 public key (32 bytes)."""
    return PeerId(base58.b58encode(_PREFIX + public_key).decode())


def public_key_of(peer: str) -> bytes:
    """Raw Ed25519 public key (32 bytes) inside a peer id. Raises WireError when it is not such an id."""
    try:
        raw = base58.b58decode(peer) if len(peer) <= 64 else b""
    except ValueError:
        raw = b""
    if len(raw) != len(_PREFIX) + 32 or not raw.startswith(_PREFIX):
        raise WireError(f"{peer[:64]!r} is not an Ed25519 peer id")
    key = raw[len(_PREFIX) :]
    if bytes((*key[:31], key[31] & 0x7F)) in _SMALL_ORDER:
        raise WireError(f"{peer[:64]!r} is a key that anybody can sign for")
    return key


def verify(peer: str, signature: bytes, message: bytes) -> bool:
    """Whether `signature` over `message` was made by the key inside `peer`."""
    try:
        _verifier_of(peer).verify(signature, message)
    except (InvalidSignature, WireError):
        return False
    return True


@lru_cache(maxsize=2048)
def _verifier_of(peer: str) -> Ed25519PublicKey:
    """The key inside a peer id, ready for use: the members of the largest roster, and as many others. An id that is
    none raises WireError each time, and takes no place."""
    return Ed25519PublicKey.from_public_bytes(public_key_of(peer))


class Identity:
    """One Ed25519 key pair. `peer` is its peer id, `public_key` the raw 32 bytes. The seed is never in a repr."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()
        self.peer = peer_id_of(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        return cls(os.urandom(32))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for the libp2p key pair and for child processes of the same node only."""
        return self._seed

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.peer})"

    def save(self, path: Path) -> None:
        """Write the key to a new file, mode 0600, durably. Raises StoreError when the file exists or cannot be made."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(_KEY_HEADER + self._seed.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"cannot write the key {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key written by `save`. Raises UsageError when others may read it, StoreError when it is no key."""
        try:
            mode = path.stat().st_mode & 0o077
            text = path.read_text() if not mode else ""
        except OSError as error:
            raise StoreError(f"cannot read the key {path}: {error.strerror}", hint="is the path right?") from error
        except UnicodeDecodeError as error:
            raise StoreError(f"{path} is no key of ours: {error}") from error
        if mode:
            raise UsageError(f"the key {path} can be read by other users", hint=f"chmod 600 {path}")
        try:
            seed = bytes.fromhex(text.removeprefix(_KEY_HEADER).strip())
        except ValueError:
            seed = b""
        if not text.startswith(_KEY_HEADER) or len(seed) != 32:
            raise StoreError(f"{path} is not a key file", hint="restore it from your backup, or move it away")
        return cls(seed)

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        if path.exists():
            return cls.load(path)
        identity = cls.generate()
        identity.save(path)
        return identity
