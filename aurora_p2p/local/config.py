"""Configuration: one frozen dataclass per program, kept as a TOML file in which every key is documented.

setting(default, "what it is, with its unit")      one field
load_config(path, Kind)                            unknown keys and wrong values are errors that name the key
checked(config)                                    the same for values that came from the command line
render_config(config)                              the file `init` writes: every key, its default, its meaning
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from aurora_p2p.errors import StoreError, UsageError
from aurora_p2p.local.configcheck import sift

T = TypeVar("T")

AT_LEAST_0 = msgspec.Meta(ge=0, le=2**40)
ABOVE_0 = msgspec.Meta(gt=0, le=2**40)
"""Ranges of settings, `Annotated[float, ABOVE_0]`: finite, and no number too large for what is computed from it."""


def setting(default: Any, meaning: str) -> Any:
    """A dataclass field with a default (a list default is copied) and one documented line."""
    if isinstance(default, tuple | str | int | float | bool):
        return dataclasses.field(default=default, metadata={"meaning": meaning})
    raise TypeError(f"defaults are plain TOML values, not {type(default).__name__}")


def default_home(program: str) -> Path:
    """`AURORA_HOME`/program if that is set, else the platform's data folder."""
    base = os.environ.get("AURORA_HOME")
    return Path(base) / program if base else Path(platformdirs.user_data_dir("aurora")) / program


def make_home(home: Path) -> Path:
    """Create a private (0700) home folder. Raises StoreError when it cannot be written."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.chmod(0o700)
        probe = home / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"cannot write to {home}: {error.strerror}", hint="choose another folder with --home DIR or AURORA_HOME"
        ) from error
    return home


def load_config(path: Path, kind: type[T]) -> T:
    """Read a TOML file into `kind`. Missing keys take their defaults. Raises UsageError or StoreError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            raise UsageError(f"{path}: unknown key {key!r}", hint=f"did you mean {near[0]!r}?" if near else "")
    return _convert(table, kind, f"{path}: ")


def checked(config: T) -> T:
    """`config` again. Raises UsageError naming the setting that is out of its range."""
    return _convert(dataclasses.asdict(config), type(config), "")  # type: ignore[call-overload]


def _convert(table: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        wrong = sift(table, kind)[1]
        text = "; ".join(f"{problem.key}: {problem.text}" for problem in wrong) or str(error)
        raise UsageError(f"{where}{text}") from error


def render_config(config: Any, heading: str) -> str:
    """TOML text with every key of a config and its meaning as a comment."""
    lines = [f"# {heading}", ""]
    for field in dataclasses.fields(config):
        lines += [f"# {field.metadata['meaning']}", f"{field.name} = {toml_value(getattr(config, field.name))}", ""]
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """A setting as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # a JSON string is a TOML one, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)
