"""Room for a model and for an artifact: refused with figures, before anything is fetched."""

import pytest
from msgspec import structs

from aurora_node import limits
from aurora_node.config import NodeConfig
from aurora_node.limits import LIBRARIES_BYTES, Room, memory_needed, too_large
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import TensorEntry
from tests.artifact.conftest import Publisher

GIB = 2**30
BILLION = 10**9
PLENTY = 10**15


def header_of(elements, *, kind="snapshot", size_bound=1 << 20, dtype="BF16"):
    specs = [TensorSpec("a", dtype, (elements // 2,)), TensorSpec("b", dtype, (elements - elements // 2,))]
    entries = (*(TensorEntry(spec, "full") for spec in specs), TensorEntry(specs[0], "alias", "a"))
    return structs.replace(Publisher().header(3, kind=kind, size_bound=size_bound), tensors=entries)


@pytest.mark.parametrize(
    ("engine", "device", "bytes_per_element"),
    [("hf", "cpu", 2 + 2 + 4), ("hf", "cuda", 2 + 2), ("simulated", "cpu", 4), ("simulated:h100", "cpu", 4)],
)
def test_an_engine_needs_the_checkpoint_a_working_copy_and_the_model_that_computes(engine, device, bytes_per_element):
    needed = memory_needed(header_of(BILLION), engine, device)
    assert needed == bytes_per_element * BILLION + LIBRARIES_BYTES[engine.partition(":")[0]]


def test_a_delta_needs_nothing_that_its_base_does_not_have():
    assert memory_needed(header_of(BILLION, kind="delta"), "hf", "cpu") == 0


@pytest.mark.parametrize(
    ("config", "sizes", "why"),
    [
        (
            NodeConfig(max_model_gib=1.0),
            {"total_ram": PLENTY},
            "version 3 may take 2,000,000,000 bytes, more than 1 GiB (max_model_gib in node.toml)",
        ),
        (
            NodeConfig(max_ram_gib=7.5, device="cpu"),
            {"total_ram": PLENTY},
            "version 3 needs 8.0 GiB of memory, more than 7.5 (max_ram_gib in node.toml)",
        ),
        (NodeConfig(), {"total_ram": 8 * BILLION}, "version 3 needs 8.0 GiB of memory, this machine has 7.5 GiB"),
        (
            NodeConfig(),
            {"total_ram": PLENTY, "gpu_total": GIB},
            "version 3 has 1.9 GiB of weights, the GPU has 1.0 GiB",
        ),
        (NodeConfig(), {"total_ram": PLENTY, "gpu_total": 2 * GIB}, ""),
        (NodeConfig(max_ram_gib=8.1), {"total_ram": PLENTY}, ""),
    ],
)
def test_what_a_machine_can_never_take_is_declined_with_figures(config, sizes, why):
    assert too_large(header_of(BILLION, size_bound=2 * BILLION), config, "cpu", **sizes) == why


class Announced:
    def __init__(self, header):
        self.header = header


def test_room_is_asked_of_the_disk_the_memory_and_what_the_engine_would_give_up(tmp_path, monkeypatch):
    free = {"ram": 3 * GIB}
    monkeypatch.setattr(limits, "free_ram", lambda: free["ram"])
    held = [0]
    room = Room(tmp_path, 0, "hf", "cpu", lambda: held[0])
    small, large = Announced(header_of(1000)), Announced(header_of(BILLION))
    assert room(small) == ""
    assert room(large) == "version 3 needs 8.0 GiB of memory, 3.0 GiB are free"
    held[0] = 6 * GIB  # the model that is loaded now makes room for the next
    assert room(large) == ""


def test_disk_that_the_owner_keeps_free_is_no_room(tmp_path):
    room = Room(tmp_path, PLENTY, "hf", "cpu", lambda: 0)
    assert "stay free (min_free_disk_gib)" in room(Announced(header_of(1000)))
    assert "cannot look at the disk" in Room(tmp_path / "gone", 0, "hf", "cpu", lambda: 0)(Announced(header_of(1000)))
