"""The one command for a machine with a GPU: it compares what it says it compares, and notices a difference."""

import numpy as np
import pytest
import torch

from aurora_p2p.delta import device
from benchmarks.codec_device import compared, device_figures, peaks


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F8_E4M3", "I64"])
def test_the_torch_path_and_the_cpu_path_are_found_equal(dtype: str) -> None:
    found = compared(dtype, 0.05, "cpu")
    assert set(found) == {
        "class map",
        "extraction",
        "snapshot",
        "digest of the delta",
        "digest in full",
        "apply",
    }
    assert all(found.values())


@pytest.mark.slow
def test_a_device_that_places_changes_wrongly_is_found(monkeypatch) -> None:
    honest = device.Crossing.off
    monkeypatch.setattr(device.Crossing, "off", lambda self, tensor: honest(self, tensor) * (tensor.numel() != 4))
    assert compared("F32", 0.001, "cpu")["digest in full"] is False


@pytest.mark.slow
def test_one_chunk_of_any_density_takes_no_more_memory_than_is_stated() -> None:
    for share in (0.01, 1.0):
        assert max(peaks(share, "cpu").values()) * 2**20 < device.DEVICE_BYTES


def test_the_figures_of_a_device_are_over_a_copy_on_it() -> None:
    base = np.full(100_000, 0x3F80, np.uint16)
    new = base.copy()
    new[::100] += 1
    figures = device_figures((base, new), "cpu")
    assert figures["changed_ratio"] == 0.01
    assert figures["off_device_bytes_per_change"] == 13
    names = ("extract", "stage", "commit", "apply", "digest")
    assert all(figures[f"{name}_over_copy"] > 0 and figures[f"{name}_gb_per_s"] > 0 for name in names)
    assert torch.device(figures["device"]).type == "cpu"
