"""One BitTorrent client of the comparison, as a process: `python -m benchmarks.swarm_net_torrent CONFIG`.

libtorrent, the library behind the clients a user would pick instead, as it comes (`libtorrent`) or with the settings
that made it fastest here (`libtorrent_tuned`: TCP only, everybody unchoked, longer request queues). Node 0 seeds. One
file, pieces of 256 KiB, SHA-1 only, which costs less than a hybrid torrent. Discovery of every kind is off: all add the
torrent, then each dials those before it; a dial that comes too early would be repeated a minute later.

The lines on stdin and stdout are those of swarm_net_node.py; `prepare` and `publish` go to everybody.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from aurora_p2p.errors import UsageError
from aurora_p2p.wire.codec import hash_of
from benchmarks.swarm_net_node import SEGMENT_BYTES, Config, say

libtorrent: Any = None
WHY_NOT = ""
try:
    libtorrent = importlib.import_module("libtorrent")
except ImportError as absent:
    WHY_NOT = str(absent)

VERSION = "2.1.1"
PORT = 6881
CHECK_SECONDS = 10.0
LOOK_SECONDS = 0.01
ALERT_MILLISECONDS = 20
"""Between two looks at stdin while a torrent is on its way."""
BASE: dict[str, Any] = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_ip_notifier": False,
    "dht_bootstrap_nodes": "",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "libtorrent": {},
    "libtorrent_tuned": {
        "enable_outgoing_utp": False,
        "enable_incoming_utp": False,
        "unchoke_slots_limit": -1,
        "max_out_request_queue": 64,
        "request_queue_time": 1,
    },
}


def require() -> None:
    """Raises UsageError when libtorrent is not installed."""
    if libtorrent is None:
        hint = f"pip install libtorrent=={VERSION}, or choose another --policy"
        raise UsageError(f"the BitTorrent rival cannot be measured: {WHY_NOT}", hint=hint)


class Client:
    def __init__(self, config: Config) -> None:
        self._config, number = config, config.number
        self._folder = Path(config.folder) / f"torrent{number}"
        self._folder.mkdir(exist_ok=True)
        mask = libtorrent.alert_category.status | libtorrent.alert_category.error
        listen = f"{config.addresses[number]}:{PORT}"
        settings = BASE | SETTINGS[config.policy] | {"listen_interfaces": listen, "alert_mask": int(mask)}
        self._session = libtorrent.session(settings)
        self._handles: dict[int, Any] = {}
        self._faults: list[str] = []

    def run(self) -> None:
        """Obey stdin until it ends."""
        while True:
            ready, _, _ = select.select([sys.stdin], [], [], 0)
            if ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self._obey(json.loads(line))
            self._session.wait_for_alert(ALERT_MILLISECONDS)
            for alert in self._session.pop_alerts():
                self._heard(alert)

    def _heard(self, alert: Any) -> None:
        if isinstance(alert, libtorrent.torrent_finished_alert):
            seq = next((seq for seq, handle in self._handles.items() if handle == alert.handle), None)
            if seq is not None and self._config.number != 0:
                say("done", seq=seq, at=time.monotonic())
        elif isinstance(alert, libtorrent.torrent_error_alert | libtorrent.file_error_alert):
            self._faults.append(alert.message())

    def _obey(self, command: Mapping[str, Any]) -> None:
        seq = command["seq"]
        match command["do"]:
            case "prepare":
                if self._config.number == 0:
                    self._make(seq, command["bytes"])
                self._add(seq)
                say("prepared", seq=seq)
            case "publish":
                at = time.monotonic()
                for address in self._config.addresses[: self._config.number]:
                    self._handles[seq].connect_peer((address, PORT))
                say("published", seq=seq, at=at)
            case "status":
                say("status", **self._status(seq))
            case "retire":
                self._session.remove_torrent(self._handles.pop(seq), libtorrent.session.delete_files)

    def _torrent(self, seq: int) -> Path:
        return Path(self._config.folder) / f"{seq}.torrent"

    def _make(self, seq: int, size: int) -> None:
        (self._folder / str(seq)).write_bytes(os.urandom(size))
        files = libtorrent.file_storage()
        libtorrent.add_files(files, str(self._folder / str(seq)))
        torrent = libtorrent.create_torrent(files, SEGMENT_BYTES, libtorrent.create_torrent.v1_only)
        libtorrent.set_piece_hashes(torrent, str(self._folder))
        self._torrent(seq).write_bytes(libtorrent.bencode(torrent.generate()))

    def _add(self, seq: int) -> None:
        """Add the torrent and wait until it takes connections."""
        flags = libtorrent.torrent_flags
        params = libtorrent.add_torrent_params()
        params.ti = libtorrent.torrent_info(str(self._torrent(seq)))
        params.save_path = str(self._folder)
        wanted = params.flags & ~flags.auto_managed & ~flags.paused
        wanted |= flags.disable_dht | flags.disable_lsd | flags.disable_pex
        params.flags = wanted | flags.seed_mode if self._config.number == 0 else wanted
        handle = self._handles[seq] = self._session.add_torrent(params)
        states = libtorrent.torrent_status.states
        until = time.monotonic() + CHECK_SECONDS
        while handle.status().state not in (states.downloading, states.seeding) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def _status(self, seq: int) -> dict[str, Any]:
        """In the words of swarm_net_node.py; `linked` is everybody: links are made by each publication."""
        handle = self._handles.get(seq)
        status = handle.status() if handle is not None else None
        path = self._folder / str(seq)
        return {
            "number": self._config.number,
            "linked": len(self._config.addresses),
            "passage": {"sent_bytes": status.total_payload_upload} if status else {},
            "received_bytes": status.total_payload_download if status else 0,
            "digest": hash_of(path.read_bytes()).hex() if status and path.exists() else "",
            "refused": dict.fromkeys(self._faults, 1),
        }


def main() -> None:
    require()
    client = Client(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config))
    say("ready")
    client.run()
    os._exit(0)  # a session takes seconds to say good-bye to trackers that there are none of


if __name__ == "__main__":
    main()
