"""From typed letters to actions: a machine without I/O.

    COMMAND --a key with a Key--> its action        COMMAND --a key with a Prompt--> ASKING
    ASKING  --enter--> its action with the typed line         ASKING --escape--> COMMAND

Invariant: what is typed while a question is open is never taken for a command.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

MAX_TYPED = 120
"""Letters of an answer."""
ESCAPE, ENTER, BACKSPACE, CLEAR = "\x1b", "\r\n", "\x7f\x08", "\x15"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
"""Arrows, function keys, mouse reports: nothing here is bound to them."""

Action = Callable[[], Awaitable[str | None]]
"""What a key does. Its answer is shown in the bottom line; an AuroraError is shown there as well."""


@dataclass(frozen=True, slots=True)
class Key:
    """label: one word of key help."""

    label: str
    act: Action


@dataclass(frozen=True, slots=True)
class Prompt:
    """A key that asks for one line first. `act` gets what was typed, never an empty line."""

    label: str
    question: str
    act: Callable[[str], Awaitable[str | None]]


Keys = Mapping[str, Key | Prompt]


def letters_of(data: bytes) -> list[str]:
    """What was typed, escape sequences of function keys left out."""
    return list(_SEQUENCE.sub("", data.decode(errors="ignore")))


def key_help(keys: Keys) -> str:
    """ "p pause  q quit"."""
    return "  ".join(f"{letter} {key.label}" for letter, key in keys.items())


class Keyboard:
    """`press` each letter; `typing` is the line to show while a question is open, else None."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._asking: Prompt | None = None
        self._typed = ""

    @property
    def typing(self) -> str | None:
        return None if self._asking is None else f"{self._asking.question} {self._typed}"

    def press(self, letter: str) -> Action | None:
        """The action that this letter completes."""
        if self._asking is not None:
            return self._type(self._asking, letter)
        key = self._keys.get(letter)
        if isinstance(key, Prompt):
            self._asking, self._typed = key, ""
            return None
        return key.act if key else None

    def _type(self, prompt: Prompt, letter: str) -> Action | None:
        if letter in ENTER or letter == ESCAPE:
            typed, self._asking = self._typed.strip(), None
            return partial(prompt.act, typed) if typed and letter != ESCAPE else None
        if letter in BACKSPACE:
            self._typed = self._typed[:-1]
        elif letter == CLEAR:
            self._typed = ""
        elif letter.isprintable() and len(self._typed) < MAX_TYPED:
            self._typed += letter
        return None
