"""What must not leave a machine in a log or a support bundle, taken out of texts and tables.

A ticket lets its reader join a swarm and names private addresses; keys, seeds and tokens are worse. A text is searched
for what looks like one; a table also by the names of its keys. Raw bytes are never shown, only counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = "(hidden)"
_TICKET = re.compile(r"aurora1[a-z2-7]{8,}", re.IGNORECASE)
_KEY_FILE = re.compile(r"(aurora-p2p ed25519 seed\s*)[0-9a-fA-F]{16,}")
_ASSIGNED = re.compile(
    r"(?i)\b(secret|seed|token|password|private_key)(['\"]?\s*[=:]\s*['\"]?)(?![0-9]+\b)[^\s'\",}]{4,}"
)
"""`token=abcd`, `"secret": "..."`; a plain number after such a word is a count or the seed of a random generator."""
_SECRET_NAMES = frozenset(
    {"secret", "seed", "token", "password", "ticket", "private_key", "prompt", "prompts", "completion", "completions"}
)
"""Names whose numbers are counts or indices and may be shown; anything else under them is hidden."""


def redact(text: str) -> str:
    """`text` without tickets, key files and assigned secrets."""
    text = _TICKET.sub(f"aurora1{HIDDEN}", text)
    text = _KEY_FILE.sub(rf"\1{HIDDEN}", text)
    return _ASSIGNED.sub(rf"\1\2{HIDDEN}", text)


def redact_value(value: Any, name: str = "", redact: Callable[[str], str] = redact) -> Any:
    """A JSON value with every text through `redact` and every value hidden whose key is the name of a secret."""
    if name.lower() in _SECRET_NAMES and value and not isinstance(value, bool | int | float):
        return HIDDEN
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"({len(value)} bytes)"
    if isinstance(value, Mapping):
        return {redact(str(key)): redact_value(item, str(key), redact) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(item, name, redact) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))
