"""Vectors of keys, envelopes, trust, tickets, names and the data plane's handshake: one swarm with fixed seeds."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aurora_p2p.crypto.identity import Identity, peer_id_of
from aurora_p2p.crypto.sign import fields, signing_bytes
from aurora_p2p.net.tls import ALPN, NEW_LINK, certificate_for, proof_bytes, server_of
from aurora_p2p.types import ArtifactId, Epoch, Generation, ManifestHash, Seq, SwarmId, Version
from aurora_p2p.wire.codec import encode
from aurora_p2p.wire.names import head_topic, namespace_of
from aurora_p2p.wire.signed import Signable, Signed, seal
from aurora_p2p.wire.ticket import Ticket
from aurora_p2p.wire.trust import Abort, Charter, Delegation, Floor, Head, Member, PeerRecord, Roster, Succession
from tests.vectors.samples import plain

NAMES = ("root", "root-2", "publish", "admit", "lease", "host", "node-a", "node-b")
SEEDS = {name: bytes([index + 1]) * 32 for index, name in enumerate(NAMES)}
KEYS = {name: Identity(seed) for name, seed in SEEDS.items()}
SWARM = SwarmId(KEYS["root"].peer)
NONCE = bytes(range(32))


def keys() -> dict[str, Any]:
    """Seeds, public keys, peer ids; texts that are none; fields()."""
    parts = [[], [b""], [b"", b""], [b"ab", b"c"], [b"a", b"bc"]]
    return {
        "identities": [
            {"name": name, "seed": SEEDS[name].hex(), "public_key": key.public_key.hex(), "peer": key.peer}
            for name, key in KEYS.items()
        ],
        "refused": [
            {"peer": "", "why": "empty"},
            {"peer": "12D3KooW", "why": "cut short"},
            {"peer": "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "why": "not an Ed25519 key in an identity hash"},
            {"peer": peer_id_of(bytes(32)), "why": "a point of small order"},
        ],
        "fields": [{"parts": [part.hex() for part in one], "bytes": fields(*one).hex()} for one in parts],
    }


def trust_values() -> dict[str, tuple[str, Signable]]:
    """Name -> (who signs, value): one of each type that says who may do what."""
    record = PeerRecord(
        SWARM, KEYS["node-a"].peer, 7, ("/ip4/192.0.2.1/tcp/4100",), ("192.0.2.1:4102", "[2001:db8::1]:4102"), 20_000
    )
    members = (Member(seal(KEYS["node-a"], record), 0, False),)
    return {
        "succession": ("root", Succession(SWARM, 1, KEYS["root-2"].peer)),
        "delegation": ("root-2", _delegation()),
        "peer-record": ("node-a", record),
        "roster": ("admit", Roster(SWARM, Generation(3), Epoch(5), members)),
        "head": ("publish", _head(NONCE)),
        "hint": ("publish", _head(b"")),
        "abort": ("publish", Abort(SWARM, Seq(12), ArtifactId(bytes([0xB0]) * 32))),
    }


def trust() -> dict[str, Any]:
    """Each signed, and the charter that they make."""
    named = {name: (who, seal(KEYS[who], value), value) for name, (who, value) in trust_values().items()}
    charter = Charter(named["delegation"][1], (named["succession"][1],))
    return {
        "signed": [{"name": name} | envelope(who, signed, value) for name, (who, signed, value) in named.items()],
        "charter": {"value": plain(charter), "bytes": encode(charter).hex()},
        "names": {"swarm": SWARM, "rendezvous": namespace_of(SWARM), "topic": head_topic(SWARM)},
    }


def envelope(who: str, signed: Signed, value: Signable) -> dict[str, Any]:
    """What is signed, byte for byte."""
    return {
        "signer": who,
        "type": type(value).__name__,
        "domain": value.domain,
        "value": plain(value),
        "body": signed.body.hex(),
        "signed_bytes": signing_bytes(value.domain, signed.body).hex(),
        "signature": signed.signature.hex(),
        "envelope": encode(signed).hex(),
    }


def tickets() -> dict[str, Any]:
    """Tickets, a bare swarm id, and lines that are refused."""
    host = f"/ip4/192.0.2.1/tcp/4100/p2p/{KEYS['host'].peer}"
    full = Ticket(SWARM, (f"/ip4/198.51.100.7/tcp/4101/p2p/{KEYS['node-b'].peer}",), (host,), _floor(), ("10.0.0.0/8",))
    texts = [str(Ticket(SWARM)), str(full)]
    return {
        "accepted": [{"text": str(ticket), "value": plain(ticket)} for ticket in (Ticket(SWARM), full)]
        + [{"text": SWARM, "value": plain(Ticket(SWARM))}, {"text": f"  {texts[0]}\n", "value": plain(Ticket(SWARM))}],
        "refused": [
            {"text": texts[0][:-1], "why": "cut short"},
            {"text": texts[0][:20] + ("a" if texts[0][20] != "a" else "b") + texts[0][21:], "why": "one wrong letter"},
            {"text": "aurora1", "why": "empty"},
            {"text": SWARM[:-1], "why": "not a peer id"},
        ],
    }


def handshake() -> dict[str, Any]:
    """The proof of a data plane connection, its parts one by one. The TLS key is fixed here, and random in life."""
    tls = ec.derive_private_key(0xA0A0A0A0, ec.SECP256R1())
    spki = tls.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    certificate = certificate_for(KEYS["host"], tls)
    [extension] = [one.value.public_bytes() for one in certificate.extensions]
    spki_hash = hashlib.sha256(spki).digest()
    assert server_of(certificate.public_bytes(Encoding.DER)) == (KEYS["host"].peer, spki_hash)
    client, server = KEYS["node-a"].peer, KEYS["host"].peer
    proof = proof_bytes(SWARM, client, server, spki_hash, NONCE, NEW_LINK)
    body = fields(SWARM.encode(), client.encode(), server.encode(), spki_hash, NONCE, NEW_LINK)
    assert proof == signing_bytes("bulk-auth", body)
    return {
        "alpn": ALPN,
        "server": {
            "spki": spki.hex(),
            "signed": (b"libp2p-tls-handshake:" + spki).hex(),
            "extension": extension.hex(),
            "spki_sha256": spki_hash.hex(),
        },
        "client": {
            "swarm": SWARM,
            "client": client,
            "server": server,
            "nonce": NONCE.hex(),
            "link": NEW_LINK.hex(),
            "body": body.hex(),
            "signed_bytes": proof.hex(),
            "answer": (KEYS["node-a"].public_key + NEW_LINK + KEYS["node-a"].sign(proof)).hex(),
        },
    }


def _delegation() -> Delegation:
    online = (KEYS["publish"].peer, KEYS["admit"].peer, KEYS["lease"].peer)
    return Delegation(SWARM, Generation(3), *online, (KEYS["host"].peer,))


def _floor() -> Floor:
    return Floor(Generation(3), Seq(11))


def _head(nonce: bytes) -> Head:
    artifact, manifest = ArtifactId(bytes([0xA0]) * 32), ManifestHash(bytes([0xC0]) * 32)
    return Head(SWARM, nonce, Generation(3), Epoch(5), Seq(12), Version(9), artifact, manifest, 1)
