"""`config check` and `config show`: everything that is wrong with a settings file, at once, and what holds.

    inspect(path, Kind)   each key by itself: unknown, of the wrong type, out of its range
    complaint(...)        turns an error of a cross-check (an address, a CIDR, hours) into a problem

Keys that are wrong take their defaults, so that one wrong key does not hide the next.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from aurora_p2p.errors import AuroraError, StoreError, UsageError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. key: "" when it is the file. A warning does not keep the program from starting."""

    key: str
    text: str
    hint: str = ""
    warning: bool = False

    def __str__(self) -> str:
        kind = "warning" if self.warning else "error"
        return f"{kind}: {self.key + ': ' if self.key else ''}{self.text}" + (f"\n  {self.hint}" if self.hint else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Inspected(Generic[T]):
    """config: what holds, wrong keys at their defaults. given: the keys that the file sets rightly."""

    config: T
    given: frozenset[str]
    problems: tuple[Problem, ...]

    @property
    def wrong(self) -> frozenset[str]:
        return frozenset(problem.key for problem in self.problems)


def inspect(path: Path, kind: type[T]) -> Inspected[T]:
    """Read a TOML file key by key. Raises StoreError when it cannot be read; a file that is no TOML is a problem."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return Inspected(kind(), frozenset(), (Problem("", f"not valid TOML: {error}"),))
    right, problems = sift(table, kind)
    return Inspected(dataclasses.replace(kind(), **right), frozenset(right), tuple(problems))  # type: ignore[type-var]


def sift(table: Mapping[str, Any], kind: type[Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The keys of a table that `kind` takes, converted, and what is wrong with the others."""
    hints = typing.get_type_hints(kind, include_extras=True)
    right: dict[str, Any] = {}
    problems = []
    for key, value in table.items():
        try:
            right[key] = _one(key, value, hints)
        except _Wrong as wrong:
            problems.append(wrong.problem)
    return right, problems


def require(problems: Iterable[Problem]) -> None:
    """Raises UsageError for the first that is more than a warning."""
    for problem in problems:
        if not problem.warning:
            raise UsageError(f"{problem.key}: {problem.text}" if problem.key else problem.text, hint=problem.hint)


class _Wrong(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _one(key: str, value: Any, hints: Mapping[str, Any]) -> Any:
    if key not in hints:
        near = difflib.get_close_matches(key, hints, n=1)
        raise _Wrong(Problem(key, "there is no such key", f"did you mean {near[0]!r}?" if near else ""))
    try:
        return msgspec.convert(value, hints[key])
    except msgspec.ValidationError:
        raise _Wrong(Problem(key, f"{str(value)[:60]!r} is not {allowed(hints[key])}")) from None


def allowed(hint: Any) -> str:
    """The values a setting takes, for a person: "a whole number from 1 to 4096"."""
    base: Any = hint
    metas: tuple[msgspec.Meta, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        base, *rest = typing.get_args(hint)
        metas = tuple(meta for meta in rest if isinstance(meta, msgspec.Meta))
    if typing.get_origin(base) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(base))
    if typing.get_origin(base) is tuple:
        return f"a list in which each is {allowed(typing.get_args(base)[0])}"
    if isinstance(base, types.UnionType):
        return " or ".join(allowed(part) for part in typing.get_args(base))
    names: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}
    return names.get(base, str(base)) + _range(metas)


def _range(metas: tuple[msgspec.Meta, ...]) -> str:
    bounds = {name: getattr(meta, name) for meta in metas for name in ("ge", "gt", "le", "lt")}
    low = f" from {bounds['ge']:g}" if bounds.get("ge") is not None else ""
    low = f" above {bounds['gt']:g}" if bounds.get("gt") is not None else low
    to = " to " if bounds.get("ge") is not None else ", at most " if low else " of at most "
    high = f"{to}{bounds['le']}" if bounds.get("le") is not None else ""
    return low + (f" below {bounds['lt']}" if bounds.get("lt") is not None else high)


def complaint(key: str, check: Callable[[], object]) -> list[Problem]:
    """The problem that `check` raises as an AuroraError or ValueError, or none."""
    try:
        check()
    except AuroraError as error:
        return [Problem(key, str(error).removeprefix(f"{key}: "), error.hint)]
    except ValueError as error:
        return [Problem(key, str(error))]
    return []


def complaints(key: str, values: Iterable[str], check: Callable[[str], object]) -> list[Problem]:
    """One problem for each value of a list that `check` refuses."""
    return [problem for value in values for problem in complaint(key, lambda value=value: check(value))]  # type: ignore[misc]
