"""The golden vectors: regenerating gives the committed bytes, decoding gives the values, every page links its own."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from google_crc32c import value as crc32c

from aurora_p2p.artifact.manifest import Manifest, artifact_id_of, manifest_hash_of
from aurora_p2p.crypto.identity import Identity, peer_id_of, public_key_of, verify
from aurora_p2p.crypto.sign import fields
from aurora_p2p.delta.apply import stage
from aurora_p2p.delta.block import BlockReader
from aurora_p2p.delta.classes.map import ClassMap
from aurora_p2p.delta.coding import decode_block, whole_bits
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.hashes import hash_of_block
from aurora_p2p.delta.snapshot import read_snapshot
from aurora_p2p.delta.tensors import bits_dtype, layout_id, tensor_id
from aurora_p2p.errors import TicketError, WireError
from aurora_p2p.lease.admission import Standing, judge
from aurora_p2p.lease.events import LeaseGranted
from aurora_p2p.lease.terms import seed_of
from aurora_p2p.net.tls import proof_bytes
from aurora_p2p.swarm.freshness import Trust
from aurora_p2p.swarm.roster import open_record
from aurora_p2p.types import DTYPES, SwarmId, TensorSpec
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.control import Lease, LeaseRequest, SampleResult
from aurora_p2p.wire.frame import Frame, FrameDecoder, frame_lengths
from aurora_p2p.wire.names import head_topic, namespace_of
from aurora_p2p.wire.signed import Signed, open_signed
from aurora_p2p.wire.ticket import parse_ticket
from aurora_p2p.wire.trust import Abort, Charter, Head
from tests.delta import reference
from tests.docs.wire_blocks import PROTOCOL, wire_records
from tests.vectors.generate import FILES, FOLDER, render
from tests.vectors.samples import plain


def vectors(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())["vectors"]


def signed(name: str, of: str) -> tuple[dict[str, Any], Signed]:
    [row] = [row for row in vectors(of)["signed"] if row["name"] == name]
    return row, decode(bytes.fromhex(row["envelope"]), Signed)


@pytest.mark.parametrize("name", FILES)
def test_generating_a_file_again_gives_the_committed_bytes(name: str) -> None:
    hint = "run `python -m tests.vectors.generate`, and say in CHANGELOG.md what changed on the wire and why"
    assert (FOLDER / f"{name}.json").read_text() == render(FILES[name]), hint


def test_there_is_no_file_that_nothing_generates() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_page_of_the_protocol_links_its_vectors_and_the_readme_lists_them(name: str) -> None:
    link = f"(../../tests/vectors/{name}.json)"
    specs = json.loads((FOLDER / f"{name}.json").read_text())["specs"]
    assert [spec for spec in specs if link not in (PROTOCOL / f"{spec}.md").read_text()] == []
    assert f"({name}.json)" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(wire_records()))
def test_every_message_decodes_to_the_value_beside_it(name: str) -> None:
    kind, rows = wire_records()[name], vectors("messages")[name]
    assert [row["edge"] for row in rows] == ["low", "high"]
    for row in rows:
        value = decode(bytes.fromhex(row["bytes"]), kind)
        assert plain(value) == row["value"]
        assert encode(value).hex() == row["bytes"]


def test_frames_come_off_a_stream_and_impossible_ones_do_not() -> None:
    rows = vectors("frames")
    stream = bytes.fromhex("".join(row["bytes"] for row in rows["frames"]))
    expected = [Frame(bytes.fromhex(row["header"]), bytes.fromhex(row["payload"])) for row in rows["frames"]]
    assert FrameDecoder().feed(stream) == expected
    for row in rows["refused"]:
        with pytest.raises(WireError):
            frame_lengths(bytes.fromhex(row["bytes"]))


def test_a_seed_makes_a_key_and_a_peer_id_gives_it_back() -> None:
    rows = vectors("keys")
    for row in rows["identities"]:
        identity = Identity(bytes.fromhex(row["seed"]))
        assert (identity.public_key.hex(), identity.peer) == (row["public_key"], row["peer"])
        assert public_key_of(row["peer"]) == identity.public_key
    for row in rows["refused"]:
        with pytest.raises(WireError):
            public_key_of(row["peer"])
    for row in rows["fields"]:
        assert fields(*map(bytes.fromhex, row["parts"])).hex() == row["bytes"]


@pytest.mark.parametrize("of", ["trust", "leases"])
def test_every_signature_covers_the_signed_bytes_and_every_envelope_opens(of: str) -> None:
    peers = {row["name"]: row["peer"] for row in vectors("keys")["identities"]}
    for row in vectors(of)["signed"]:
        envelope, kind = decode(bytes.fromhex(row["envelope"]), Signed), wire_records()[row["type"]]
        assert (envelope.signer, envelope.body.hex()) == (peers[row["signer"]], row["body"])
        assert verify(envelope.signer, envelope.signature, bytes.fromhex(row["signed_bytes"]))
        parts = (b"aurora-p2p", row["domain"].encode(), b"\x00\x01", envelope.body)
        assert fields(*parts).hex() == row["signed_bytes"]
        assert plain(open_signed(envelope, kind, {envelope.signer})) == row["value"]


def test_a_peer_that_knows_only_the_swarm_id_believes_the_trust_vectors() -> None:
    rows = vectors("trust")
    trust = Trust(SwarmId(rows["names"]["swarm"]))
    assert trust.adopt(decode(bytes.fromhex(rows["charter"]["bytes"]), Charter))
    assert trust.take_roster(signed("roster", "trust")[1]).epoch == 5
    open_record(signed("peer-record", "trust")[1], swarm=trust.swarm)
    head = signed("head", "trust")[1]
    trust.challenge(open_signed(head, Head, None).nonce, 100.0)
    assert isinstance(trust.answer(head, 101.0), Head)
    assert trust.is_fresh(219.0)
    assert isinstance(trust.hint(signed("hint", "trust")[1]), Head)
    assert isinstance(trust.open_abort(signed("abort", "trust")[1]), Abort)


def test_the_names_follow_from_the_swarm_id() -> None:
    names = vectors("trust")["names"]
    swarm = SwarmId(names["swarm"])
    assert (namespace_of(swarm), head_topic(swarm)) == (names["rendezvous"], names["topic"])


def test_tickets_are_read_and_damaged_ones_refused() -> None:
    rows = vectors("tickets")
    for row in rows["accepted"]:
        ticket = parse_ticket(row["text"])
        assert plain(ticket) == row["value"]
    for row in rows["refused"]:
        with pytest.raises(TicketError):
            parse_ticket(row["text"])


def test_the_handshake_proof_is_made_of_its_parts_and_signed_by_the_client() -> None:
    rows = vectors("handshake")
    client, server = rows["client"], rows["server"]
    nonce, spki_hash = bytes.fromhex(client["nonce"]), bytes.fromhex(server["spki_sha256"])
    link = bytes.fromhex(client["link"])
    proof = proof_bytes(client["swarm"], client["client"], client["server"], spki_hash, nonce, link)
    assert proof.hex() == client["signed_bytes"]
    answer = bytes.fromhex(client["answer"])
    assert peer_id_of(answer[:32]) == client["client"]
    assert answer[32:64] == link
    assert verify(client["client"], answer[64:], proof)
    extension = bytes.fromhex(server["extension"])
    assert peer_id_of(extension[8:40]) == client["server"]
    assert verify(client["server"], extension[42:], bytes.fromhex(server["signed"]))


def test_blocks_decode_to_the_new_bits_in_the_mode_named() -> None:
    for row in vectors("blocks")["blocks"]:
        dtype, new = bits_dtype(row["dtype"]), row["new"]
        spec = TensorSpec("tensor", row["dtype"], (len(new),))
        found = BlockReader().feed(bytes.fromhex(row["bytes"]))
        assert [block.mode for block in found] == ([] if row["mode"] is None else [row["mode"]])
        if row["base"] is None:
            assert whole_bits(found[0], spec).tolist() == new
            continue
        state = np.array(row["base"], dtype)
        for block in found:
            change = decode_block(block, spec, state, ClassMap(bytes.fromhex(row["class_map"])))
            state[change.positions] = change.new
        assert state.tolist() == new


def test_the_decoder_written_from_the_page_reads_the_blocks_and_they_show_every_mode_and_kind() -> None:
    seen: set[tuple[object, ...]] = set()
    for row in vectors("blocks")["blocks"]:
        thresholds, width = bytes.fromhex(row["class_map"]), 8 * bits_dtype(row["dtype"]).itemsize
        for block in reference.read_stream(bytes.fromhex(row["bytes"])):
            assert reference.decode(block, width, row["base"], thresholds) == row["new"]
            seen.add((block.mode,))
            if block.mode == reference.CLASSES:
                heads, _ = reference.read_heads(block.payload, row["base"], thresholds)
                seen |= {(block.mode, one.kind, one.rest is not None) for one in heads if one.n}
                seen |= {("length",) for one in heads if one.length is not None}
    kinds = {(reference.CLASSES, kind, False) for kind in range(4)} | {(reference.CLASSES, 0, True), ("length",)}
    assert seen >= {(mode,) for mode in range(5)} | kinds


def test_a_hash_block_carries_the_blake3_of_the_tensors_bytes() -> None:
    row = vectors("blocks")["hash"]
    (block,) = BlockReader().feed(bytes.fromhex(row["bytes"]))
    assert hash_of_block(block).hex() == row["hash"]
    assert blake3(np.array(row["bits"], bits_dtype(row["dtype"])).tobytes()).hexdigest() == row["hash"]


def test_damaged_blocks_are_refused_and_the_crc_is_crc32c() -> None:
    rows = vectors("blocks")
    for row in rows["refused"]:
        with pytest.raises(WireError):
            BlockReader().feed(bytes.fromhex(row["bytes"]))
    block = bytes.fromhex(rows["blocks"][0]["bytes"])
    assert crc32c(block[:-4]) == int.from_bytes(block[-4:], "little")


def test_tensor_ids_layouts_and_states_have_their_digests() -> None:
    rows = vectors("digests")
    for row in rows["tensors"]:
        assert tensor_id(spec_of(row["spec"])) == row["id"]
    for row in rows["layouts"]:
        assert layout_id([spec_of(spec) for spec in row["specs"]], row["aliases"]).hex() == row["layout"]
    for row in rows["states"]:
        specs = [spec_of(spec) for spec in row["specs"]]
        bits = {spec.name: np.array(row["bits"][spec.name], bits_dtype(spec.dtype)) for spec in specs}
        assert full_digest(specs, bits).hex() == row["digest"]
    for row in rows["dtypes"]:
        spec = spec_of(row["spec"])
        bits = {spec.name: np.resize(np.array(row["pattern"], bits_dtype(spec.dtype)), spec.elements)}
        assert (tensor_id(spec), full_digest([spec], bits).hex()) == (row["id"], row["digest"])
    assert {row["spec"][1] for row in rows["dtypes"]} == set(DTYPES)


def spec_of(row: list[Any]) -> TensorSpec:
    return TensorSpec(row[0], row[1], tuple(row[2]))


def test_an_artifact_verifies_from_header_to_final_page_and_its_body_is_the_state() -> None:
    rows, specs = vectors("artifacts"), [spec_of(row["spec"]) for row in vectors("digests")["tensors"]]
    digests = [bytes.fromhex(row["digest"]) for row in vectors("digests")["states"]]
    for name in ("snapshot", "delta"):
        row = rows[name]
        header = decode(bytes.fromhex(row["header"]), Signed)
        manifest = Manifest(header, rows["publisher"])
        assert plain(manifest.header) == row["header_value"]
        assert artifact_id_of(header).hex() == row["artifact"]
        for page in row["pages"]:
            manifest.add_page(decode(bytes.fromhex(page), Signed))
        final = decode(bytes.fromhex(row["final"]), Signed)
        manifest.add_final(final)
        assert manifest_hash_of(final).hex() == row["manifest_hash"]
        body = bytes.fromhex(row["body"])
        segments = [body[start : start + 256] for start in range(0, len(body), 256)]
        assert [blake3(segment).hexdigest() for segment in segments] == row["segments"]
        assert [manifest.expected(index) for index in range(len(segments))] == list(map(bytes.fromhex, row["segments"]))
    state = read_snapshot(specs, [bytes.fromhex(rows["snapshot"]["body"])], digests[0])
    staged = stage(specs, [bytes.fromhex(rows["delta"]["body"])], state, digests[0], digests[1])
    assert (staged.digest, staged.changed) == (digests[1], 3)


def test_the_result_is_admitted_under_the_lease() -> None:
    lease = open_signed(signed("lease", "leases")[1], Lease, None)
    request = open_signed(signed("request", "leases")[1], LeaseRequest, None)
    envelope = signed("result", "leases")[1]
    record = LeaseGranted(
        lease.lease,
        lease.lessee,
        lease.target_step,
        lease.version,
        lease.manifest_hash,
        lease.digest,
        lease.fencing,
        lease.seconds,
        lease.samples,
    )
    seeds = {(one.prompt, one.sample): one.seed for one in lease.samples}
    standing = Standing(record, seeds, lease.sampling, request.digest, None)
    result = decode(envelope.body, SampleResult)
    assert judge(envelope, result, standing, run=request.run, max_lag=1).value == "new"


def test_seeds_are_the_keyed_hash_of_the_draw() -> None:
    for row in vectors("leases")["seeds"]:
        slot = (row["prompt"], row["sample"])
        assert seed_of(bytes.fromhex(row["secret"]), row["step"], row["version"], slot) == row["seed"] < 2**63


@pytest.mark.slow  # imports torch
def test_the_engine_draws_the_noise_and_the_tokens_of_the_vectors() -> None:
    import torch

    from aurora_p2p.engine.sampling import draw, noise_words

    rows = vectors("sampling")
    for row in rows["noise"]:
        words = noise_words(torch.tensor([row["seed"]]), row["position"], row["token"] + 1)
        assert words[0, row["token"]].item() == row["word"]
        noise = -math.log(-math.log1p(-(row["word"] + 0.5) / 2**32))
        assert math.isclose(noise, row["gumbel"], rel_tol=1e-11)
    for row in rows["draws"]:
        tokens, logprobs = draw(
            torch.tensor([row["logits"]]), torch.tensor([row["seed"]]), row["position"], row["temperature"]
        )
        assert tokens.item() == row["token"]
        assert math.isclose(logprobs.item(), row["logprob"], rel_tol=1e-5)
