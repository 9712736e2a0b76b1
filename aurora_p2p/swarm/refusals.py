"""Why the exchange machine refuses what a peer did: a closed list, so that counters by reason stay bounded.

A refusal bans nobody; bytes that fail a hash, or a page that fails its signature, do (members.py).
"""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """The values are what logs and status displays show."""

    OTHER_WIRE = "it speaks no wire version of ours"
    NO_PUBLISHER = "no publisher is trusted now"
    BAD_HEADER = "a header that does not verify"
    OTHER_SWARM = "the header belongs to another swarm"
    TOO_MANY_ARTIFACTS = "too many artifacts are known"
    BAD_FINAL = "a final page that does not verify"
    PAST_THE_BOUND = "it announced segments past the header's bound"
    TOO_MANY_REQUESTS = "it asked for more segments at a time than are queued"
    NO_PAYLOAD = "a segment without payload"
    UNASKED = "it sent a segment that nobody asked for"
    NO_PAGE = "a segment came without its page"
    SILENT = "it does not answer requests"
