"""The books of a crash run: what nodes were told, what the trainer got, and whether the two agree.

    a node's log       "receipts": this node was told that the host has its sample      read_receipts
    the trainer        "taken": whose sample it trains on, for every sample of a step   Books.taken

An acknowledged sample must be the one that is trained on (else it was lost), nobody else may have been told that his
was taken for the same place, and a step holds each of its samples once (else one was doubled). A step that is taken
again by a trainer that started anew must be the same step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet_trainer import GROUP, PROMPTS

MAX_LAG = 1
Slot = tuple[int, int]
"""(prompt, sample) of a step."""


class LogReader:
    """New lines of a node's rotated JSON log, each once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._inode = path, 0, -1

    def read(self) -> Iterator[dict[str, Any]]:
        """Whole lines written since the last call; one cut off by a kill is skipped."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return
        if self._inode not in (-1, inode):
            yield from self._lines(self._path.with_name(self._path.name + ".1"))
            self._offset = 0
        self._inode = inode
        yield from self._lines(self._path)

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


@dataclass
class Books:
    """Everything acknowledged and everything taken, and where they differ: one line per fault found."""

    acknowledged: dict[int, dict[Slot, str]] = field(default_factory=dict)
    """step -> slot -> peer, of steps that are not taken yet."""
    steps: dict[int, dict[Slot, str]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    receipts: int = 0

    def receipt(self, peer: str, event: Mapping[str, Any]) -> None:
        """One "receipts" note of a node's log."""
        step = int(event["step"])
        for prompt, sample in event["accepted"]:
            self.receipts += 1
            slot = (int(prompt), int(sample))
            before = self.acknowledged.setdefault(step, {}).setdefault(slot, peer)
            if before != peer:
                self.doubled.append(f"sample {slot} of step {step} was acknowledged to {before} and to {peer}")
            if step in self.steps:
                self._compare(step)

    def taken(self, event: Mapping[str, Any]) -> None:
        """One "taken" event of the trainer."""
        step, got = int(event["step"]), {(int(p), int(s)): str(node) for p, s, node in event["samples"]}
        if len(event["samples"]) != len(got):
            self.doubled.append(f"step {step} holds a sample twice")
        if len(got) != PROMPTS * GROUP:
            self.lost.append(f"step {step} holds {len(got)} of {PROMPTS * GROUP} samples")
        if event["min_lag"] < 0 or event["max_lag"] > MAX_LAG:
            self.stale.append(f"step {step} holds samples with a lag of {event['min_lag']} to {event['max_lag']}")
        if self.steps.setdefault(step, got) != got:
            self.lost.append(f"step {step} was taken twice and was not the same")
        self._compare(step)

    def _compare(self, step: int) -> None:
        got = self.steps[step]
        for slot, peer in self.acknowledged.pop(step, {}).items():
            if got.get(slot) != peer:
                self.lost.append(f"sample {slot} of step {step}: acknowledged to {peer}, trained on {got.get(slot)}")
