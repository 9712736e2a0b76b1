"""Publishing over a real socket: what the other side holds is always what the trainer has."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.tensors import Bits
from aurora_p2p.engine.model import write_checkpoint
from aurora_p2p.engine.tables import specs_of
from aurora_p2p.errors import CheckpointError, RefusedError
from aurora_p2p.train.base import refuse_non_finite
from aurora_p2p.train.client import SwarmClient
from aurora_p2p.train.publish import MAX_DELTAS, MIN_BOUND, Publisher, publish_folder, snapshot_bound
from aurora_p2p.types import TensorSpec, Version
from aurora_p2p.wire.manifest import ModelConfig

CONFIG = ModelConfig("qwen3", 264, 128, 256, 2, 4, 2, 32, 128, 10_000.0, 1e-6, True, False, (258,), 256)
SPECS = specs_of(CONFIG)


def random_bits(seed: int) -> dict[str, Bits]:
    """bf16 patterns of values in 1 .. 2, so that every one is finite and steps stay so."""
    rng = np.random.default_rng(seed)
    return {spec.name: rng.integers(0x3F80, 0x3FFF, spec.elements, np.uint16) for spec in SPECS}


def stepped(bits: dict[str, Bits], share: float) -> dict[str, Bits]:
    """The same weights with a share of them one ULP higher."""
    rng = np.random.default_rng(0)
    return {name: flat + (rng.random(flat.size) < share).astype(np.uint16) for name, flat in bits.items()}


@pytest.fixture
def swarm(open_swarm):
    return open_swarm(lambda weights, version, request: [])


def test_the_first_publication_is_a_snapshot_and_the_next_ones_are_deltas(swarm) -> None:
    first, second = random_bits(1), stepped(random_bits(1), 0.01)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        snapshot = publisher.publish(SPECS, first, Version(0))
        delta = publisher.publish(SPECS, second, Version(1))
    assert (snapshot.kind, delta.kind) == ("snapshot", "delta")
    assert (delta.version, delta.digest) == (1, full_digest(SPECS, second)) == (swarm.version, swarm.digest)
    assert swarm.weights[1].keys() == second.keys()
    assert all(np.array_equal(swarm.weights[1][name], second[name]) for name in second)
    changed = sum(int((first[name] != second[name]).sum()) for name in first)
    assert (delta.changed, delta.elements) == (changed, sum(spec.elements for spec in SPECS))
    assert delta.bytes < snapshot.bytes / 20
    assert (swarm.begun[0].model, swarm.begun[1].model) == (CONFIG, None)


def test_the_bound_follows_the_previous_delta_and_never_falls_below_its_floor(swarm) -> None:
    half = sum(spec.nbytes for spec in SPECS) // 2
    bits = random_bits(2)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, bits, Version(0))
        sizes = []
        for version, share in enumerate((0.6, 0.001, 0.001), 1):
            bits = stepped(bits, share)
            sizes.append(publisher.publish(SPECS, bits, Version(version)).bytes)
    assert [begin.size_bound for begin in swarm.begun] == [snapshot_bound(SPECS), half, 4 * sizes[0], MIN_BOUND]


def test_a_delta_that_outgrows_its_bound_is_aborted_and_published_anew(swarm) -> None:
    first = random_bits(3)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, first, Version(0))
        publisher.publish(SPECS, stepped(first, 0.001), Version(1))
        other = random_bits(4)
        delta = publisher.publish(SPECS, other, Version(2))
    assert delta.kind == "delta"
    assert len(swarm.aborted) == 1
    assert [begin.size_bound for begin in swarm.begun[-2:]] == [MIN_BOUND, snapshot_bound(SPECS)]
    assert swarm.digest == full_digest(SPECS, other)


def test_a_publisher_whose_base_the_host_does_not_hold_sends_a_snapshot(swarm) -> None:
    first, second = random_bits(5), random_bits(6)
    with SwarmClient.open(swarm.path) as client:
        stranger = Publisher(client, CONFIG)
        Publisher(client, CONFIG).publish(SPECS, first, Version(0))
        assert not stranger.adopt(SPECS, second)
        assert stranger.publish(SPECS, second, Version(1)).kind == "snapshot"
        restarted = Publisher(client, CONFIG)
        assert restarted.adopt(SPECS, second)
        assert restarted.publish(SPECS, stepped(second, 0.01), Version(2)).kind == "delta"


def test_a_host_that_went_on_without_this_publisher_gets_a_snapshot(swarm) -> None:
    bits = random_bits(15)
    with SwarmClient.open(swarm.path) as client:
        publisher, other = Publisher(client, CONFIG), Publisher(client, CONFIG)
        publisher.publish(SPECS, bits, Version(0))
        other.publish(SPECS, random_bits(16), Version(1))
        assert publisher.publish(SPECS, stepped(bits, 0.01), Version(2)).kind == "snapshot"


def test_full_sends_every_version_whole(swarm) -> None:
    bits = random_bits(7)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, bits, Version(0))
        again = publisher.publish(SPECS, stepped(bits, 0.01), Version(1), full=True)
    assert (again.kind, again.changed) == ("snapshot", again.elements)
    assert again.bytes >= sum(spec.nbytes for spec in SPECS) // 3


def test_after_many_deltas_one_version_travels_whole_so_that_old_ones_can_go(swarm) -> None:
    kinds = []
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        for version, deltas in enumerate([0, MAX_DELTAS - 1, MAX_DELTAS, 0]):
            swarm.deltas = deltas
            kinds.append(publisher.publish(SPECS, random_bits(1), Version(version)).kind)
    assert kinds == ["snapshot", "delta", "snapshot", "delta"]


def test_weights_that_did_not_change_are_an_empty_delta(swarm) -> None:
    bits = random_bits(8)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, bits, Version(0))
        same = publisher.publish(SPECS, dict(bits), Version(1))
    assert (same.bytes, same.changed, swarm.version) == (0, 0, 1)


def test_a_refusal_leaves_the_base_as_it_was(swarm) -> None:
    bits = random_bits(9)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, bits, Version(0))
        swarm.refuse = "no disk"
        with pytest.raises(RefusedError, match="no disk"):
            publisher.publish(SPECS, random_bits(10), Version(1))
        swarm.refuse = ""
        assert publisher.publish(SPECS, stepped(bits, 0.01), Version(1)).kind == "delta"


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [
        ("BF16", 0x7F80),
        ("BF16", 0xFFC1),
        ("F16", 0x7C00),
        ("F32", 0x7FC0_0000),
        ("F64", 0xFFF0 << 48),
        ("F8_E4M3", 0xFF),
    ],
)
def test_a_value_that_is_not_finite_is_refused_by_tensor_name(dtype: str, pattern: int) -> None:
    bits = np.zeros(3, np.dtype(f"u{ {'BF16': 2, 'F16': 2, 'F32': 4, 'F64': 8, 'F8_E4M3': 1}[dtype] }"))
    specs = [TensorSpec("a.fine", "U8", (2,)), TensorSpec("b.weight", dtype, (3,))]
    fine = np.full(2, 0xFF, np.uint8)
    refuse_non_finite(specs, {"a.fine": fine, "b.weight": bits})
    bits[1] = pattern
    with pytest.raises(CheckpointError, match=r"b\.weight"):
        refuse_non_finite(specs, {"a.fine": fine, "b.weight": bits})


def test_nothing_reaches_the_host_when_weights_are_not_finite(swarm) -> None:
    bits = random_bits(11)
    bits["model.norm.weight"][5] = 0x7F80
    with SwarmClient.open(swarm.path) as client, pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        Publisher(client, CONFIG).publish(SPECS, bits, Version(0))
    assert swarm.begun == []


def test_a_folder_becomes_version_0_once(swarm, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", CONFIG, SPECS, random_bits(12))
    write_checkpoint(tmp_path / "b", CONFIG, SPECS, random_bits(13))
    sent: list[int] = []
    with SwarmClient.open(swarm.path) as client:
        publication = publish_folder(tmp_path / "a", client, sent.append)
        assert publication is not None
        assert (publication.version, sent[-1]) == (0, publication.bytes)
        assert publish_folder(tmp_path / "a", client) is None
        with pytest.raises(CheckpointError, match="already holds version 0"):
            publish_folder(tmp_path / "b", client)


@pytest.mark.slow
def test_the_command_publishes_a_folder_and_a_bad_folder_is_one_clear_line(swarm, tmp_path: Path) -> None:
    bits = random_bits(14)
    write_checkpoint(tmp_path / "good", CONFIG, SPECS, bits)
    command = [sys.executable, "-m", "aurora_p2p.train.publish", "--socket", str(swarm.path)]
    done = subprocess.run([*command, str(tmp_path / "good")], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("version 0: ")
    assert (swarm.version, swarm.digest) == (0, full_digest(SPECS, bits))
    failed = subprocess.run([*command, str(tmp_path / "missing")], capture_output=True, text=True, check=False)
    assert failed.returncode == CheckpointError.exit_status
    assert failed.stderr.startswith("error: cannot read the checkpoint")
    assert "Traceback" not in failed.stderr


def test_a_publication_whose_answer_was_lost_is_recognised_by_its_digest_and_not_made_twice(swarm) -> None:
    first, second = random_bits(1), stepped(random_bits(1), 0.01)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, first, Version(0))
        swarm.lose_next_answer = True
        publication = publisher.publish(SPECS, second, Version(1))
        assert (publication.version, publication.digest) == (1, full_digest(SPECS, second)) == (1, swarm.digest)
        assert publication.kind == "delta"
        assert publisher.publish(SPECS, stepped(second, 0.01), Version(2)).kind == "delta"
    assert [begin.version for begin in swarm.begun] == [0, 1, 2]


def test_a_publication_that_is_cut_off_is_made_again_on_the_base_that_the_swarm_has(swarm) -> None:
    first, second = random_bits(1), stepped(random_bits(1), 0.01)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, first, Version(0))
        swarm.cut_next_body = True
        assert publisher.publish(SPECS, second, Version(1)).kind == "delta"
    assert [begin.version for begin in swarm.begun] == [0, 1, 1]
    assert swarm.digest == full_digest(SPECS, second)


def test_a_host_without_room_is_waited_for(swarm) -> None:
    swarm.refuse_for = 1
    with SwarmClient.open(swarm.path) as client:
        assert Publisher(client, CONFIG).publish(SPECS, random_bits(1), Version(0)).version == 0
    assert [begin.version for begin in swarm.begun] == [0, 0]


def test_a_refusal_because_an_earlier_attempt_has_arrived_meanwhile_is_a_success(swarm) -> None:
    first, second = random_bits(1), stepped(random_bits(1), 0.01)
    with SwarmClient.open(swarm.path) as client:
        publisher = Publisher(client, CONFIG)
        publisher.publish(SPECS, first, Version(0))
        swarm.lose_next_answer, swarm.stale_heads = True, 2
        publication = publisher.publish(SPECS, second, Version(1))
    assert (publication.version, publication.kind, publication.digest) == (1, "delta", swarm.digest)
    assert [begin.kind for begin in swarm.begun] == ["snapshot", "delta", "delta"]
