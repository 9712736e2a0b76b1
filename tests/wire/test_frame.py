from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aurora_p2p.errors import WireError
from aurora_p2p.wire.frame import Frame, FrameDecoder, encode_frame

frames = st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.binary(max_size=200)), max_size=8)


@given(frames=frames, cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_frames_survive_any_cutting_of_the_stream(frames: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(header, payload) for header, payload in frames)
    decoder, got, start, turn = FrameDecoder(), [], 0, 0
    while start < len(stream):
        size = cuts[turn % len(cuts)]
        got += decoder.feed(stream[start : start + size])
        start, turn = start + size, turn + 1
    assert got == [Frame(header, payload) for header, payload in frames]
    assert decoder.pending == 0


@given(data=st.binary(max_size=300))
def test_any_bytes_are_frames_or_a_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        FrameDecoder(max_header=64, max_payload=64).feed(data)


def test_an_impossible_length_is_refused_at_once() -> None:
    with pytest.raises(WireError, match="limits"):
        FrameDecoder().feed(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    with pytest.raises(WireError):
        FrameDecoder().feed(b"\x00\x00\x00\x01\xff\xff\xff\xff")


def test_a_cut_stream_leaves_pending_bytes() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(encode_frame(b"header", b"payload")[:-1]) == []
    assert decoder.pending == 8 + 6 + 6
