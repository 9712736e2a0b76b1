"""64-bit words and 64-lane vectors for the kernels: what numba has no name for, written as LLVM IR.

Addresses are int64; a load or a store checks nothing, the caller has. The IR names no machine: LLVM lowers it to AVX2,
NEON or plain code. Only `deposit` uses an instruction of its own (BMI2's pdep) where the compiling machine has it.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(width) for width in (1, 8, 16, 32, 64))
LANES = 64
SINGLES = 32
"""32-bit lanes of the vectors that count bits: four registers of AVX2."""
AHEAD_BYTES = 2048
"""How far ahead a sequential reader prefetches: hardware stops at each 4 KiB page, which halved a scan's speed."""
HAS_DEPOSIT = bool(llvmlite.binding.get_host_cpu_features().get("bmi2", False))


def _vector(kind: Any) -> Any:
    return ir.VectorType(kind, LANES)


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_vector(value.type), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _load_lanes(builder: Any, address: Any) -> Any:
    lanes = builder.load(builder.inttoptr(address, _vector(_I16).as_pointer()))
    lanes.align = 2
    return lanes


def _constant(kind: Any, value: int) -> Any:
    return ir.Constant(_vector(kind), [value] * LANES)


@intrinsic
def differing(_context: Any, left: Any, right: Any) -> Any:
    """uint64: bit i is set where the i-th of 64 uint16 at two addresses differ."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = [_load_lanes(builder, address) for address in arguments]
        return builder.bitcast(builder.icmp_unsigned("!=", *pair), _I64)

    return types.uint64(types.int64, types.int64), generate


@intrinsic
def at_least(_context: Any, lanes: Any, floors: Any) -> Any:
    """Seven uint64: bit i of the j-th is set where bits 14..7 of lane i (uint16) are >= floor j.

    lanes: address of 64 uint16; floors: address of 7 int8, each (floor - 1) XOR 0x80; 127 stands for "never".
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shifted = builder.lshr(builder.shl(_load_lanes(builder, arguments[0]), _constant(_I16, 1)), _constant(_I16, 8))
        biased = builder.xor(builder.trunc(shifted, _vector(_I8)), _constant(_I8, 0x80))
        table = builder.inttoptr(arguments[1], _I8.as_pointer())
        masks = []
        for index in range(7):
            floor = builder.load(builder.gep(table, [ir.Constant(_I32, index)]))
            floor.set_metadata("invariant.load", builder.module.add_metadata([]))
            masks.append(builder.bitcast(builder.icmp_signed(">", biased, _splat(builder, floor)), _I64))
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.uint64, 7)(types.int64, types.int64), generate


@intrinsic
def passed(_context: Any, counts: Any, rank: Any) -> Any:
    """How many of 64 uint16 at an address are <= rank; all are below 2**15."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bound = _splat(builder, builder.trunc(arguments[1], _I16))
        return builder.ctpop(
            builder.bitcast(builder.icmp_signed("<=", _load_lanes(builder, arguments[0]), bound), _I64)
        )

    return types.uint64(types.int64, types.int64), generate


def _singles(builder: Any, address: Any) -> Any:
    lanes = builder.load(builder.inttoptr(address, ir.VectorType(_I32, SINGLES).as_pointer()))
    lanes.align = 4
    return lanes


def _spread(builder: Any, value: Any) -> Any:
    """One 64-bit number in SINGLES 32-bit lanes."""
    kind = ir.VectorType(_I32, SINGLES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), builder.trunc(value, _I32), ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(kind, [0] * SINGLES))


def _rice_total(builder: Any, values: Any, k: Any, zeros: Any, escape: Any) -> Any:
    """Sum over lanes of (value >> k) + 1 + k, or `escape` where value >> k reaches `zeros`."""
    kind = ir.VectorType(_I32, SINGLES)
    quotient = builder.lshr(values, k)
    plain = builder.add(builder.add(quotient, k), ir.Constant(kind, [1] * SINGLES))
    bits = builder.select(builder.icmp_signed("<", quotient, zeros), plain, escape)
    name = f"llvm.vector.reduce.add.v{SINGLES}i32"
    total = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [kind]), name)
    return builder.zext(builder.call(total, [bits]), _I64)


@intrinsic
def rice_bits(_context: Any, values: Any, k: Any, zeros: Any, escape: Any) -> Any:
    """Bits of the Rice codes with parameter k of SINGLES uint32 below 2**31 at an address; a code whose quotient
    reaches `zeros` takes `escape` bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = _singles(builder, arguments[0])
        return _rice_total(builder, lanes, *(_spread(builder, argument) for argument in arguments[1:]))

    return types.uint64(types.int64, types.uint64, types.uint64, types.uint64), generate


@intrinsic
def scaled_rice_bits(_context: Any, values: Any, shifts: Any, scale: Any, highest: Any, zeros: Any, escape: Any) -> Any:
    """rice_bits where each lane has its own k: scale less the uint32 at `shifts`, but within 0 .. highest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(ir.VectorType(_I32, SINGLES), [0] * SINGLES)
        scale, highest, zeros, escape = (_spread(builder, argument) for argument in arguments[2:])
        k = builder.sub(scale, _singles(builder, arguments[1]))
        k = builder.select(builder.icmp_signed(">", k, zero), k, zero)
        k = builder.select(builder.icmp_signed("<", k, highest), k, highest)
        return _rice_total(builder, _singles(builder, arguments[0]), k, zeros, escape)

    return types.uint64(types.int64, types.int64, *[types.uint64] * 4), generate


@intrinsic
def ones(_context: Any, word: Any) -> Any:
    """Number of set bits of a uint64."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def lowest(_context: Any, word: Any) -> Any:
    """Index of the lowest set bit of a uint64 that is not 0."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.cttz(
        arguments[0], ir.Constant(_I1, 1)
    )


@intrinsic
def leading(_context: Any, word: Any) -> Any:
    """Clear bits above the highest set bit of a uint64 that is not 0."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctlz(
        arguments[0], ir.Constant(_I1, 1)
    )


def _loader(width: Any) -> Any:
    def typing(_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = builder.load(builder.inttoptr(arguments[0], width.as_pointer()))
            word.align = 1
            return word if width is _I64 else builder.zext(word, _I64)

        return types.uint64(types.int64), generate

    return intrinsic(typing)


def _storer(width: Any) -> Any:
    def typing(_context: Any, address: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            low = arguments[1] if width is _I64 else builder.trunc(arguments[1], width)
            store = builder.store(low, builder.inttoptr(arguments[0], width.as_pointer()))
            store.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return intrinsic(typing)


load8, load16, load32, load64 = _loader(_I8), _loader(_I16), _loader(_I32), _loader(_I64)
"""The little-endian word at an address, aligned or not, as uint64."""
store8, store16, store32, store64 = _storer(_I8), _storer(_I16), _storer(_I32), _storer(_I64)


if HAS_DEPOSIT:

    @intrinsic
    def deposit(_context: Any, word: Any, mask: Any) -> Any:
        """The low bits of `word`, one after the other, at the set bits of `mask`; 0 elsewhere."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(_I64, [_I64, _I64])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.bmi.pdep.64"), arguments)

        return types.uint64(types.uint64, types.uint64), generate

else:

    @numba.njit(forceinline=True)
    def deposit(word: Any, mask: Any) -> Any:
        """The low bits of `word`, one after the other, at the set bits of `mask`; 0 elsewhere."""
        spread = np.uint64(0)
        while word and mask:
            low = mask & (np.uint64(0) - mask)
            if word & np.uint64(1):
                spread |= low
            word >>= np.uint64(1)
            mask ^= low
        return spread


@intrinsic
def prefetch(_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address that will be read soon; any address is allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [builder.inttoptr(arguments[0], pointer), *(ir.Constant(_I32, n) for n in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate
