"""What a support bundle says of the machine: enough to help, and nobody's name."""

import getpass
import json
import platform
from pathlib import Path

from aurora_p2p.local.machine import gpus, machine


def test_it_is_plain_json_with_versions_and_sizes_and_names_neither_the_machine_nor_its_user():
    told = machine()
    text = json.dumps(told)
    assert told["packages"]["libp2p"]
    assert told["python"].startswith(platform.python_version())
    assert 0 < told["free_memory_bytes"] <= told["memory_bytes"]
    assert platform.node() not in text.split('"')
    assert getpass.getuser() not in text.split('"')
    assert str(Path.home()) not in text


def test_gpus_are_listed_with_their_memory_or_it_is_said_why_none_is_seen():
    found = gpus()
    if Path("/proc/driver/nvidia/version").exists():
        assert all(gpu["name"] and gpu["memory_bytes"] >= gpu["free_bytes"] > 0 for gpu in found)
    else:
        assert isinstance(found, str)
        assert found
