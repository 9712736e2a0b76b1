"""The data plane's handshake under attack: every refusal has its name, and the child lives on."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.local.clock import boottime
from aurora_p2p.net import tls as tls_module
from aurora_p2p.net.tls import ALPN, NEW_LINK, Fault, Judge, Opened, Tls, certificate_for, proof_bytes, server_of
from aurora_p2p.types import PeerId
from aurora_p2p.wire.bulk import BulkStats, LinkOpened
from tests.net.bulk_child import SWARM, BulkChild, identity, linked, member_tls


def both_sides(client: Tls, expected: PeerId, server: Tls, judge: Judge) -> tuple[str, str]:
    """Run a handshake over a socket pair; what each side made of it ("open" or the fault)."""
    ours, theirs = socket.socketpair()
    accepted: list[Opened | Fault] = []
    until = boottime() + 10
    thread = threading.Thread(target=lambda: accepted.append(server.accept(theirs, judge, until)))
    thread.start()
    dialled = client.dial(ours, expected, until)
    thread.join()
    answer = accepted[0]
    for opened in (dialled, answer):
        if isinstance(opened, Opened):
            opened.secure.close()
    return (
        dialled.value if isinstance(dialled, Fault) else "open",
        answer.value if isinstance(answer, Fault) else "open",
    )


def everyone(peer: PeerId, link: bytes) -> None:
    return None


def with_certificate(tls: Tls, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Tls:
    """The same peer with a server certificate of the test's making."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([ALPN])
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    tls_module._load(context, secret + certificate.public_bytes(Encoding.PEM))
    return Tls(tls.identity, tls.swarm, context, tls.client, tls.spki_hash)


def reissued(original: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A certificate of another key that carries the extensions of `original`."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "thief")])
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, datetime.datetime(2000, 1, 1), datetime.datetime(2100, 1, 1)
    )
    for extension in original.extensions:
        builder = builder.add_extension(extension.value, critical=False)
    return builder.sign(key, hashes.SHA256())


def test_two_honest_peers_open_a_link() -> None:
    client, server = member_tls(1), member_tls(2)
    seen: list[PeerId] = []
    assert both_sides(client, server.identity.peer, server, lambda peer, link: seen.append(peer)) == ("open", "open")
    assert seen == [client.identity.peer]


def test_a_certificate_names_its_peer_and_its_key() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    server = server_of(certificate_for(identity(1), key).public_bytes(Encoding.DER))
    assert not isinstance(server, Fault)
    assert server[0] == identity(1).peer


def test_any_damage_to_a_certificate_is_a_fault() -> None:
    good = certificate_for(identity(1), ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
    for position in range(0, len(good), 7):
        damaged = bytearray(good)
        damaged[position] ^= 0x40
        assert isinstance(server_of(bytes(damaged)), Fault)
    assert server_of(b"") == Fault.BAD_CERTIFICATE
    assert server_of(good[:-1]) == Fault.BAD_CERTIFICATE


def test_a_server_with_another_peer_id_is_refused_by_the_client() -> None:
    client, server = member_tls(1), member_tls(2)
    dialled, _ = both_sides(client, identity(3).peer, server, everyone)
    assert dialled == Fault.WRONG_PEER


def test_a_stolen_certificate_extension_does_not_fit_another_key() -> None:
    client, victim, thief = member_tls(1), identity(2), member_tls(3)
    stolen = certificate_for(victim, ec.generate_private_key(ec.SECP256R1()))
    key = ec.generate_private_key(ec.SECP256R1())
    dialled, _ = both_sides(client, victim.peer, with_certificate(thief, reissued(stolen, key), key), everyone)
    assert dialled == Fault.BAD_CERTIFICATE


def test_a_stolen_certificate_cannot_be_used_without_its_key() -> None:
    stolen = certificate_for(identity(2), ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):
        with_certificate(member_tls(3), stolen, ec.generate_private_key(ec.SECP256R1()))


def test_a_client_that_is_not_a_member_is_told_so() -> None:
    faults = both_sides(member_tls(1), identity(2).peer, member_tls(2), lambda peer, link: Fault.NOT_A_MEMBER)
    assert faults == (Fault.NOT_A_MEMBER, Fault.NOT_A_MEMBER)


def test_a_client_of_another_swarm_has_no_valid_proof() -> None:
    other = Tls.create(identity(1), tls_swarm := type(SWARM)(identity(9).peer))
    assert tls_swarm != SWARM
    assert both_sides(other, identity(2).peer, member_tls(2), everyone) == (Fault.BAD_PROOF, Fault.BAD_PROOF)


def test_the_proof_binds_every_field() -> None:
    a, b, c = (identity(number).peer for number in (1, 2, 3))
    proofs = {
        proof_bytes(SWARM, a, b, b"s" * 32, b"n" * 32, NEW_LINK),
        proof_bytes(type(SWARM)(c), a, b, b"s" * 32, b"n" * 32, NEW_LINK),
        proof_bytes(SWARM, c, b, b"s" * 32, b"n" * 32, NEW_LINK),
        proof_bytes(SWARM, a, c, b"s" * 32, b"n" * 32, NEW_LINK),
        proof_bytes(SWARM, a, b, b"t" * 32, b"n" * 32, NEW_LINK),
        proof_bytes(SWARM, a, b, b"s" * 32, b"m" * 32, NEW_LINK),
        proof_bytes(SWARM, a, b, b"s" * 32, b"n" * 32, b"l" * 32),
    }
    assert len(proofs) == 7


class Intruder:
    """A hand-made client: it speaks TLS as it likes and answers the nonce as it likes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.raw = socket.create_connection((host, int(port)), timeout=20)

    def shake(self, alpn: str = ALPN, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[bytes, bytes]:
        """TLS handshake; (the server's certificate, its nonce)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        context.set_alpn_protocols([alpn])
        self.raw = context.wrap_socket(self.raw)
        return self.raw.getpeercert(binary_form=True) or b"", self.raw.recv(32)

    def verdict(self) -> bytes:
        """What the server answers; empty when it just closes."""
        try:
            return self.raw.recv(64)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.raw.close()


BAD_PROOF, NOT_A_MEMBER = b"\x01", b"\x02"


class Besieged:
    """A child that knows peers 1, 2 and 4, and the refusals that it must have counted in the end."""

    def __init__(self, child: BulkChild) -> None:
        self.child, self.address, self.refused = child, child.listening(), Counter[str]()
        child.members(*(identity(number).peer for number in (1, 2, 4)))

    def refuses(self, fault: Fault) -> None:
        self.refused[fault.value] += 1

    def wait_until_counted(self) -> None:
        self.child.seen(BulkStats, lambda stats: Counter(dict(stats.refused)) >= self.refused)


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    """After all the attacks the child has named every refusal, and still links with peer 2."""
    folder = tmp_path_factory.mktemp("bulk")
    besieged = Besieged(BulkChild(1, folder))
    yield besieged
    friend = BulkChild(2, folder)
    friend.listening()
    friend.members(besieged.child.peer, friend.peer)
    linked(friend, besieged.child, besieged.address)
    besieged.wait_until_counted()
    friend.close()
    besieged.child.close()


@pytest.fixture
def intruder(besieged: Besieged) -> Iterator[Intruder]:
    intruder = Intruder(besieged.address)
    yield intruder
    intruder.close()


def answer_to(nonce: bytes, certificate: bytes, signer: Identity, server: PeerId, link: bytes = NEW_LINK) -> bytes:
    named = server_of(certificate)
    assert not isinstance(named, Fault)
    return signer.public_key + link + signer.sign(proof_bytes(SWARM, signer.peer, server, named[1], nonce, link))


def test_a_stranger_with_a_valid_proof_is_no_member(besieged: Besieged, intruder: Intruder) -> None:
    certificate, nonce = intruder.shake()
    intruder.raw.sendall(answer_to(nonce, certificate, identity(3), besieged.child.peer))
    assert intruder.verdict() == NOT_A_MEMBER
    besieged.refuses(Fault.NOT_A_MEMBER)


def test_a_replayed_signature_is_refused(besieged: Besieged, intruder: Intruder) -> None:
    first = Intruder(besieged.address)
    certificate, nonce = first.shake()
    recorded = answer_to(nonce, certificate, identity(4), besieged.child.peer)
    first.raw.sendall(recorded)
    assert first.verdict()[:1] == b"\x00"
    besieged.child.wait_for(LinkOpened)
    first.close()
    _, other_nonce = intruder.shake()
    assert other_nonce != nonce
    intruder.raw.sendall(recorded)
    assert intruder.verdict() == BAD_PROOF


def test_a_relayed_handshake_is_refused(besieged: Besieged, intruder: Intruder) -> None:
    """Mallory, whom the victim dials, passes on the nonce of the server that she wants to enter."""
    _, nonce = intruder.shake()
    mallory = certificate_for(identity(4), ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
    from_victim = answer_to(nonce, mallory, identity(2), identity(4).peer)
    intruder.raw.sendall(from_victim)
    assert intruder.verdict() == BAD_PROOF
    besieged.refuses(Fault.BAD_PROOF)


def test_a_proof_for_another_certificate_of_the_same_server_is_refused(intruder: Intruder) -> None:
    _, nonce = intruder.shake()
    other = certificate_for(identity(1), ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
    intruder.raw.sendall(answer_to(nonce, other, identity(2), identity(1).peer))
    assert intruder.verdict() == BAD_PROOF


def test_a_client_without_a_signature_is_refused(besieged: Besieged, intruder: Intruder) -> None:
    intruder.shake()
    intruder.raw.sendall(identity(2).public_key + NEW_LINK + bytes(64))
    assert intruder.verdict() == BAD_PROOF


def test_a_client_that_leaves_instead_of_signing_is_counted(besieged: Besieged, intruder: Intruder) -> None:
    intruder.shake()
    intruder.close()
    besieged.refuses(Fault.CUT_SHORT)


def test_garbage_instead_of_tls_is_refused(besieged: Besieged, intruder: Intruder) -> None:
    intruder.raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(512))
    assert intruder.verdict() == b""
    besieged.refuses(Fault.NOT_TLS)


def test_an_older_tls_is_refused(besieged: Besieged, intruder: Intruder) -> None:
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        intruder.shake(version=ssl.TLSVersion.TLSv1_2)
    besieged.refuses(Fault.NOT_TLS)


def test_another_wire_version_is_refused(besieged: Besieged, intruder: Intruder) -> None:
    _, nonce = intruder.shake(alpn="aurora-bulk/999")
    assert nonce == b""
    besieged.refuses(Fault.OTHER_PROTOCOL)


@pytest.mark.slow
def test_a_slow_loris_is_cut_off_while_others_are_served(besieged: Besieged) -> None:
    lorises = [Intruder(besieged.address) for _ in range(8)]
    for loris in lorises:
        loris.raw.sendall(b"\x16\x03")
        besieged.refuses(Fault.TOO_SLOW)
    besieged.wait_until_counted()
    for loris in lorises:
        assert loris.verdict() == b""
        loris.close()


@pytest.mark.slow
def test_more_handshakes_than_allowed_are_turned_away_at_once(besieged: Besieged) -> None:
    crowd = [Intruder(besieged.address) for _ in range(66)]
    for _ in range(2):
        besieged.refuses(Fault.TOO_MANY)
    besieged.wait_until_counted()
    for member in crowd:
        member.close()
