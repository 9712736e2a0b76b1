"""The field lists of docs/protocol, rendered from the wire types themselves.

A block in a protocol document is fenced as ```wire and holds one entry per message:

    Name  tag "x"            (or: signed in domain "x", or neither)
        field  type and limits

`render(kind)` is what the entry must be; `python tests/docs/wire_blocks.py` brings every entry up to date in place.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as wire_inspect

import aurora_p2p.wire
from aurora_p2p.types import Record, SampleKey, TensorSpec
from aurora_p2p.wire.signed import Signable

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol"
BLOCK = re.compile(r"^```wire\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENT = "    "


def wire_records() -> dict[str, type[Record]]:
    """Every Record that can travel, by name; no two share one."""
    found: dict[str, type[Record]] = {TensorSpec.__name__: TensorSpec}
    for module in pkgutil.iter_modules(aurora_p2p.wire.__path__):
        home = importlib.import_module(f"aurora_p2p.wire.{module.name}")
        for value in vars(home).values():
            if isinstance(value, type) and issubclass(value, Record) and value.__module__ == home.__name__:
                assert value.__name__ not in found, f"two wire types are called {value.__name__}"
                found[value.__name__] = value
    for abstract in (Record, Signable, SampleKey):
        found.pop(abstract.__name__, None)
    return found


def render(kind: type[Record]) -> str:
    """The entry of one message."""
    fields = msgspec.structs.fields(kind)
    width = max((len(field.name) for field in fields), default=0)
    lines = [f"{kind.__name__}{_title(kind)}"]
    for field in fields:
        default = "" if field.default is NODEFAULT else f" = {_value(field.default)}"
        text = _type(wire_inspect.type_info(field.type), field.type)
        lines.append(f"{INDENT}{field.name:<{width}}  {text}{default}")
    return "\n".join(lines)


def entries(block: str) -> list[str]:
    """The entries inside one ```wire block."""
    return [entry.rstrip("\n") for entry in re.split(r"^(?=\S)", block, flags=re.MULTILINE) if entry.strip()]


def _title(kind: type[Record]) -> str:
    parts = []
    if kind.__struct_config__.tag is not None:
        parts.append(f'tag "{kind.__struct_config__.tag}"')
    if issubclass(kind, Signable):
        parts.append(f'signed in domain "{kind.domain}"')
    return "  " + ", ".join(parts) if parts else ""


def _type(kind: wire_inspect.Type, annotation: object) -> str:
    match kind:
        case wire_inspect.Metadata():
            return _type(kind.type, annotation)
        case wire_inspect.IntType():
            return "int" + _range(kind.ge, kind.le, kind.gt, kind.lt)
        case wire_inspect.FloatType():
            return "float" + _range(kind.ge, kind.le, kind.gt, kind.lt)
        case wire_inspect.StrType():
            return "str" + _range(kind.min_length, kind.max_length)
        case wire_inspect.BytesType():
            return "bytes" + _range(kind.min_length, kind.max_length)
        case wire_inspect.VarTupleType():
            return f"[{_type(kind.item_type, None)}]" + _range(kind.min_length, kind.max_length)
        case wire_inspect.TupleType():
            return "(" + ", ".join(_type(item, None) for item in kind.item_types) + ")"
        case wire_inspect.UnionType():
            return " | ".join(_type(item, None) for item in kind.types)
        case wire_inspect.LiteralType():
            return " | ".join(_value(value) for value in kind.values)
        case wire_inspect.StructType() | wire_inspect.EnumType():
            return kind.cls.__name__
        case wire_inspect.BoolType():
            return "bool"
        case wire_inspect.NoneType():
            return "null"
    raise AssertionError(f"no rendering for {kind} ({annotation})")


def _range(low: float | None, high: float | None, above: float | None = None, below: float | None = None) -> str:
    if isinstance(below, int):
        high, below = below - 1, None
    if low is not None and low == high:
        return f" {_number(low)}"
    left = f"{_number(low)}.." if low is not None else f"above {_number(above)}.." if above is not None else ".."
    right = _number(high) if high is not None else f"below {_number(below)}" if below is not None else ""
    return f" {left}{right}" if left + right != ".." else ""


def _number(value: float) -> str:
    if value <= -2048:
        return "-" + _number(-value)
    if value >= 2048 and value == int(value):
        whole = int(value)
        if whole & (whole - 1) == 0:
            return f"2^{whole.bit_length() - 1}"
        if whole & (whole + 1) == 0:
            return f"2^{whole.bit_length()}-1"
        digits = len(str(whole)) - 1
        if whole == 10**digits:
            return f"10^{digits}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Record):
        return f"{type(value).__name__}({', '.join(_value(part) for part in msgspec.structs.astuple(value))})"
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    return "null" if value is None else str(value)


def main() -> None:
    """Rewrite every ```wire block from the types it names."""
    records = wire_records()

    def renew(match: re.Match[str]) -> str:
        names = [re.match(r"\w+", entry).group() for entry in entries(match[1])]  # type: ignore[union-attr]
        return "```wire\n" + "\n\n".join(render(records[name]) for name in names) + "\n```"

    for path in sorted(PROTOCOL.glob("*.md")):
        text = path.read_text()
        path.write_text(BLOCK.sub(renew, text))


if __name__ == "__main__":
    main()
