"""TLS 1.3 connections bound to peer ids: the data plane's handshake (docs/protocol/03-exchange.md).

    client                                                   server
    TLS 1.3, ALPN "aurora-bulk/<wire version>"          <->  certificate with the libp2p TLS extension
    checks that the extension names the peer it dialled
                                                        <-   nonce (32 random bytes)
    public key (32), link (32), signature (64)           ->  checks the signature, then asks `judge` about the peer
                                                        <-   verdict (1 byte)

A link is named by the nonce of its first connection. A client sends zeros to open one, or the name of the link that
this connection joins as a further lane: same client, same server, same swarm, that very link and no later one.

The extension (OID 1.3.6.1.4.1.53594.1.1, libp2p tls spec) carries the server's public key and its signature over
"libp2p-tls-handshake:" + SPKI of the certificate, so a copied extension does not fit another key. The client's
signature covers both ids, the swarm, the nonce, the link and the hash of the server's SPKI: whoever relays or replays
it presents another id, key or nonce. Python offers no TLS exporter; the SPKI hash binds the channel.

The TLS key lives in this process's memory only; there are no tickets, no resumption, no 0-RTT. Certificate dates are
ignored: clocks do not matter here. Every function ends by its deadline and answers with a socket or a named `Fault`.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from aurora_p2p.crypto.identity import Identity, peer_id_of, verify
from aurora_p2p.crypto.sign import WIRE_VERSION, fields, signing_bytes
from aurora_p2p.local.clock import boottime
from aurora_p2p.types import PeerId, SwarmId

HANDSHAKE_SECONDS = 3.0
"""For the whole handshake, connecting excluded: longer is a slow-loris, not a slow link (5 kB travel)."""
ALPN = f"aurora-bulk/{WIRE_VERSION}"

_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_KEY_PROTOBUF = bytes.fromhex("08011220")
_SIGNED_KEY = bytes.fromhex("3068") + bytes.fromhex("0424") + _KEY_PROTOBUF
"""DER of SignedKey{publicKey OCTET STRING, signature OCTET STRING} up to the key: all lengths are fixed for Ed25519."""
_SIGNATURE_TAG = bytes.fromhex("0440")
_NONCE_BYTES, _PROOF_BYTES = 32, 128
NEW_LINK = bytes(_NONCE_BYTES)
"""In place of a link's name: this connection opens one."""
_VALID = (datetime.datetime(1975, 1, 1), datetime.datetime(4096, 1, 1))


class Fault(StrEnum):
    """Why a connection was not opened: stable names for status and logs."""

    TOO_SLOW = "handshake-too-slow"
    NOT_TLS = "not-tls-1.3"
    OTHER_PROTOCOL = "other-protocol-version"
    CUT_SHORT = "closed-during-handshake"
    BAD_CERTIFICATE = "bad-certificate"
    WRONG_PEER = "wrong-peer-id"
    BAD_PROOF = "bad-proof"
    NOT_A_MEMBER = "not-a-member"
    DUPLICATE = "duplicate-link"
    TOO_MANY = "too-many-connections"
    UNREACHABLE = "unreachable"
    BAD_ADDRESS = "bad-address"
    NO_SUCH_LINK = "no-such-link"


_VERDICTS: tuple[Fault | None, ...] = (
    None,
    Fault.BAD_PROOF,
    Fault.NOT_A_MEMBER,
    Fault.DUPLICATE,
    Fault.TOO_MANY,
    Fault.NO_SUCH_LINK,
)
"""What the server's verdict byte means; None opens the connection."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An authenticated connection. link: the name of the link that it has opened, or that it joins."""

    secure: ssl.SSLSocket
    peer: PeerId
    link: bytes
    joins: bool


Judge = Callable[[PeerId, bytes], Fault | None]
"""Asked about (peer, NEW_LINK or the link to join) once the client has proved its id.

None reserves a place: the caller must release it when the rest fails.
"""


def certificate_for(identity: Identity, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A self-signed certificate of `key` that carries the identity in the libp2p extension."""
    signature = identity.sign(b"libp2p-tls-handshake:" + _spki(key.public_key()))
    extension = _SIGNED_KEY + identity.public_key + _SIGNATURE_TAG + signature
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aurora-p2p")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), *_VALID)
    builder = builder.add_extension(x509.UnrecognizedExtension(_EXTENSION, extension), critical=False)
    return builder.sign(key, hashes.SHA256())


def server_of(certificate: bytes) -> tuple[PeerId, bytes] | Fault:
    """(peer id, SHA-256 of the SPKI) that a DER certificate proves, or the fault in it."""
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        value = parsed.extensions.get_extension_for_oid(_EXTENSION).value
        parsed.verify_directly_issued_by(parsed)
        spki = _spki(parsed.public_key())
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return Fault.BAD_CERTIFICATE
    raw = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
    key, tag, signature = raw[8:40], raw[40:42], raw[42:]
    if raw[:8] != _SIGNED_KEY or tag != _SIGNATURE_TAG or len(signature) != 64:
        return Fault.BAD_CERTIFICATE
    peer = peer_id_of(key)
    if not verify(peer, signature, b"libp2p-tls-handshake:" + spki):
        return Fault.BAD_CERTIFICATE
    return peer, hashlib.sha256(spki).digest()


@dataclass(frozen=True, slots=True)
class Tls:
    """What one process needs to open and accept links. `spki_hash`: SHA-256 of its own certificate's SPKI."""

    identity: Identity
    swarm: SwarmId
    server: ssl.SSLContext
    client: ssl.SSLContext
    spki_hash: bytes

    @classmethod
    def create(cls, identity: Identity, swarm: SwarmId) -> Tls:
        key = ec.generate_private_key(ec.SECP256R1())
        client = _context(ssl.PROTOCOL_TLS_CLIENT)
        server = _context(ssl.PROTOCOL_TLS_SERVER)
        server.num_tickets = 0
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _load(server, secret + certificate_for(identity, key).public_bytes(Encoding.PEM))
        return cls(identity, swarm, server, client, hashlib.sha256(_spki(key.public_key())).digest())

    def dial(self, raw: socket.socket, expected: PeerId, deadline: float, link: bytes = NEW_LINK) -> Opened | Fault:
        """The client's side over a connected socket, which is closed unless it opens. deadline: boottime.

        link: the link that the connection joins; NEW_LINK opens one.
        """
        return _shake(self.client, raw, deadline, lambda channel: self._prove(channel, expected, link))

    def accept(self, raw: socket.socket, judge: Judge, deadline: float) -> Opened | Fault:
        """The server's side, likewise. The accepting verdict has been sent when this returns a connection."""
        return _shake(self.server, raw, deadline, lambda channel: self._examine(channel, judge))

    def _prove(self, channel: _Channel, expected: PeerId, link: bytes) -> Opened | Fault:
        server = server_of(channel.secure.getpeercert(binary_form=True) or b"")
        if isinstance(server, Fault):
            return server
        peer, spki_hash = server
        if peer != expected:
            return Fault.WRONG_PEER
        nonce = channel.receive(_NONCE_BYTES)
        proof = proof_bytes(self.swarm, self.identity.peer, peer, spki_hash, nonce, link)
        channel.send(self.identity.public_key + link + self.identity.sign(proof))
        verdict = channel.receive(1)[0]
        fault = _VERDICTS[verdict] if verdict < len(_VERDICTS) else Fault.OTHER_PROTOCOL
        return fault or _opened(channel.secure, peer, nonce, link)

    def _examine(self, channel: _Channel, judge: Judge) -> Opened | Fault:
        nonce = os.urandom(_NONCE_BYTES)
        channel.send(nonce)
        answer = channel.receive(_PROOF_BYTES)
        peer, link = peer_id_of(answer[:32]), answer[32:64]
        proof = proof_bytes(self.swarm, peer, self.identity.peer, self.spki_hash, nonce, link)
        fault = judge(peer, link) if verify(peer, answer[64:], proof) else Fault.BAD_PROOF
        channel.send(bytes([_VERDICTS.index(fault)]))
        return fault or _opened(channel.secure, peer, nonce, link)


def _opened(secure: ssl.SSLSocket, peer: PeerId, nonce: bytes, link: bytes) -> Opened:
    joins = link != NEW_LINK
    return Opened(secure, peer, link if joins else nonce, joins)


def proof_bytes(swarm: SwarmId, client: PeerId, server: PeerId, spki_hash: bytes, nonce: bytes, link: bytes) -> bytes:
    """What the client signs: one swarm, one pair of ids, one certificate, one connection, one link."""
    parts = (swarm.encode(), client.encode(), server.encode(), spki_hash, nonce, link)
    return signing_bytes("bulk-auth", fields(*parts))


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Python takes keys from files only: an anonymous one in memory, gone when it is closed."""
    descriptor = os.memfd_create("tls")
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def _spki(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an elliptic curve key")  # noqa: TRY004 - a fault of the peer's certificate, not of a type
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True, slots=True)
class _Channel:
    """A TLS socket whose every step ends by one deadline: TimeoutError when it passes, EOFError when it is cut."""

    secure: ssl.SSLSocket
    deadline: float

    def open(self) -> None:
        self._arm()
        self.secure.do_handshake()

    def send(self, message: bytes) -> None:
        self._arm()
        self.secure.sendall(message)

    def receive(self, count: int) -> bytes:
        message = b""
        while len(message) < count:
            self._arm()
            piece = self.secure.recv(count - len(message))
            if not piece:
                raise EOFError
            message += piece
        return message

    def _arm(self) -> None:
        left = self.deadline - boottime()
        if left <= 0:
            raise TimeoutError
        self.secure.settimeout(left)


def _shake(
    context: ssl.SSLContext, raw: socket.socket, deadline: float, talk: Callable[[_Channel], Opened | Fault]
) -> Opened | Fault:
    """Wrap, handshake, talk. A peer's failure is a Fault, and the socket is closed with every Fault."""
    held: socket.socket = raw
    result: Opened | Fault
    try:
        server_side = context.protocol == ssl.PROTOCOL_TLS_SERVER
        held = secure = context.wrap_socket(raw, server_side=server_side, do_handshake_on_connect=False)
        channel = _Channel(secure, deadline)
        channel.open()
        result = talk(channel) if secure.selected_alpn_protocol() == ALPN else Fault.OTHER_PROTOCOL
    except TimeoutError:
        result = Fault.TOO_SLOW
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, EOFError):
        result = Fault.CUT_SHORT
    except ssl.SSLError:
        result = Fault.NOT_TLS
    except OSError:
        result = Fault.CUT_SHORT
    if isinstance(result, Fault):
        held.close()
    return result
