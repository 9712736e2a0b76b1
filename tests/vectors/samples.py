"""Sample values of every wire record, made from the declared types alone, and their JSON form.

`low` has every number at its lower limit and everything else as short as it may be; `high` has every number at its
upper limit, optional values present and two elements where more than one may stand. Nothing is drawn at random.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect as wire_inspect

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.types import Record
from aurora_p2p.wire.control import Reason

Edge = Literal["low", "high"]
T = TypeVar("T", bound=Record)

PEER = Identity(bytes(range(32))).peer
"""Where a field must hold a peer id: the key with the seed 00 01 02 ... 1f."""
UNBOUNDED = {"low": -0.5, "high": 0.25}
"""Of a number without limits."""


def sample(kind: type[T], edge: Edge) -> T:
    """One value of a record."""
    return kind(
        **{field.name: _value(wire_inspect.type_info(field.type), edge) for field in msgspec.structs.fields(kind)}
    )


def plain(value: object) -> Any:
    """A value as JSON: a record as an array in field order after its tag, bytes as hexadecimal text after "0x"."""
    match value:
        case Record():
            tag = type(value).__struct_config__.tag
            return [*([] if tag is None else [tag]), *(plain(getattr(value, name)) for name in value.__struct_fields__)]
        case bytes():
            return f"0x{value.hex()}"
        case tuple() | list():
            return [plain(one) for one in value]
        case Reason():
            return value.value
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"no JSON form for {type(value)}")


def _value(kind: wire_inspect.Type, edge: Edge) -> Any:
    match kind:
        case wire_inspect.Metadata():
            return _value(kind.type, edge)
        case wire_inspect.IntType() | wire_inspect.FloatType():
            return _number(kind, edge)
        case wire_inspect.StrType():
            return PEER if (kind.min_length or 0) >= 40 else "a" * (kind.min_length or 0) if edge == "low" else "text é"
        case wire_inspect.BytesType():
            length = (kind.min_length or 0) if edge == "low" else min(kind.max_length or 8, 2 * (kind.min_length or 2))
            return bytes(0xFF - index % 256 for index in range(length))
        case wire_inspect.VarTupleType():
            length = (kind.min_length or 0) if edge == "low" else min(kind.max_length or 2, 2)
            return tuple(_value(kind.item_type, edge) for _ in range(length))
        case wire_inspect.TupleType():
            return tuple(_value(item, edge) for item in kind.item_types)
        case wire_inspect.UnionType():
            others = [item for item in kind.types if not isinstance(item, wire_inspect.NoneType)]
            return None if edge == "low" and kind.includes_none else _value(others[-1], edge)
        case wire_inspect.LiteralType():
            return kind.values[0 if edge == "low" else -1]
        case wire_inspect.StructType():
            return sample(kind.cls, edge)
        case wire_inspect.EnumType():
            return Reason.NO_WORK
        case wire_inspect.BoolType():
            return edge == "high"
    raise TypeError(f"no sample of {kind}")


def _number(kind: wire_inspect.IntType | wire_inspect.FloatType, edge: Edge) -> float:
    low, high, whole = kind.ge, kind.le, isinstance(kind, wire_inspect.IntType)
    if edge == "low" and low is not None:
        return low if whole else float(low)
    if edge == "high" and high is not None:
        return high if whole else float(high)
    if edge == "high" and kind.lt is not None:
        return kind.lt - 1 if whole else kind.lt / 2
    if edge == "low" and kind.gt is not None:
        return kind.gt + 1 if whole else 2.0**-20
    return int(UNBOUNDED[edge] * 8) if whole else UNBOUNDED[edge]
