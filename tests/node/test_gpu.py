"""Whose load on a GPU is whose, by what a driver answers. The driver here answers what it is told to."""

import os
from types import SimpleNamespace

import pytest

from aurora_node import gpu as module
from aurora_node.gpu import Gpu, open_gpu

OURS, OTHER, HIDDEN = os.getpid(), 1, 2**22 + 1
"""Two processes that there are, and a number that no process of this name space can have."""


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


class Driver:
    """The part of NVML that is used. used: percent; by: pid -> percent; fails: names of calls that raise."""

    NVMLError, NVMLError_NotSupported = NVMLError, NotSupported

    def __init__(self, used=0, by=(), fails=(), mig=0):
        self.used, self.by, self.fails, self.mig = used, dict(by), set(fails), mig
        self.asked_since = []

    def _may(self, name, error=NVMLError):
        if name in self.fails:
            raise error

    def nvmlInit(self):
        self._may("init")

    def nvmlDeviceGetName(self, handle):
        return f"GPU {handle}"

    def nvmlDeviceGetHandleByIndex(self, index):
        self._may("index")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetMigMode(self, handle):
        self._may("mig", NotSupported)
        return self.mig, self.mig

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._may("rates")
        return SimpleNamespace(gpu=self.used, memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.by]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        raise NotSupported

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        self._may("samples")
        self.asked_since.append(since)
        return [
            SimpleNamespace(pid=pid, smUtil=share, timeStamp=since + at)
            for pid, share in self.by.items()
            for at in (1, 2)
        ]

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._may("memory")
        return SimpleNamespace(total=100, free=40)


@pytest.mark.parametrize(
    ("driver", "others"),
    [
        (Driver(), 0.0),
        (Driver(80, {OURS: 80}), 0.0),
        (Driver(80, {OURS: 30, OTHER: 50}), 50.0),
        (Driver(80, {OTHER: 80}), 80.0),  # our engine is not on it
        (Driver(80, {OURS: 90, OTHER: 0}), 0.0),
        (Driver(80, {OURS: 80, OTHER: 0}, fails=["samples"]), 80.0),
        (Driver(80), None),  # busy, and nobody to be seen: a container
        (Driver(80, {HIDDEN: 80}), None),  # numbers of another name space
        (Driver(80, {OURS: 80}, fails=["rates"]), None),
    ],
)
def test_the_load_of_others_is_all_but_ours_and_unknown_where_nobody_can_be_told_apart(driver, others):
    assert Gpu(driver, 0).others_percent({OURS}) == others


def test_each_sample_of_the_driver_counts_once():
    driver = Driver(50, {OURS: 50, OTHER: 0})
    gpu = Gpu(driver, 0)
    gpu.others_percent({OURS})
    gpu.others_percent({OURS})
    assert driver.asked_since == [0, 2]


def test_memory_is_known_where_the_driver_says_it():
    assert Gpu(Driver(), 0).memory() == (100, 40)
    assert Gpu(Driver(fails=["memory"]), 0).memory() is None


@pytest.mark.parametrize(
    ("visible", "device", "name"),
    [
        ("", "cuda", "GPU 0"),
        ("", "cuda:2", "GPU 2"),
        ("3,1", "cuda:1", "GPU 1"),
        ("GPU-abc", "cuda", "GPU GPU-abc"),
        ("MIG-abc", "cuda", None),
    ],
)
def test_the_gpu_watched_is_the_one_that_the_engine_sees(visible, device, name, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(module, "_load", lambda: Driver(fails=["mig"]))
    found = open_gpu(device)
    assert (found.name if found else None) == name


@pytest.mark.parametrize("driver", [None, Driver(fails=["init"]), Driver(fails=["index"]), Driver(mig=1)])
def test_without_a_driver_a_gpu_or_a_whole_gpu_there_is_nothing_to_watch(driver, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "_load", lambda: driver)
    assert open_gpu("cuda") is None


def test_the_real_library_answers_with_a_gpu_or_with_none():
    found = open_gpu("cuda")
    assert found is None or 0 < found.memory()[1] <= found.memory()[0]
