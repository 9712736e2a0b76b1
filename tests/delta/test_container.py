"""Delta files from anybody: any bytes are a delta file or a WireError, and nothing in them is believed."""

import json

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from aurora_p2p.artifact.container import MAGIC, DeltaFile, closing, opening
from aurora_p2p.artifact.states import Arrays, Table
from aurora_p2p.artifact.tensorfiles import FileSet, TensorFile, TensorFiles, stored_in
from aurora_p2p.artifact.transition import Transition
from aurora_p2p.delta.block import CLASSES, RAW, RawBlock, frame
from aurora_p2p.delta.hashes import hash_block
from aurora_p2p.errors import CheckpointError, WireError
from aurora_p2p.host.delta_files import Effort, NewFile, encode, layered, verify
from aurora_p2p.types import TensorSpec
from aurora_p2p.wire.manifest import TensorEntry

SPECS = (TensorSpec("a", "BF16", (300,)), TensorSpec("b", "U8", (4,)))
EFFORT = Effort(1, lambda doing, done, total: None)


def header(**rows):
    """A safetensors header of (dtype, shape, begin, end) by name."""
    table = {n: {"dtype": d, "shape": s, "data_offsets": [b, e]} for n, (d, s, b, e) in rows.items()}
    return json.dumps(table).encode()


FILES = FileSet((TensorFile("m", header(a=("BF16", [300], 0, 600), b=("U8", [4], 600, 604))),), b"", False)


@pytest.fixture(scope="module")
def states(make_step):
    step = make_step({spec.name: (spec.dtype, spec.shape) for spec in SPECS}, 0.2, 1)
    return Arrays(Table(SPECS), step.base), Arrays(Table(SPECS), step.new)


@pytest.fixture(scope="module")
def good(states, tmp_path_factory):
    """The bytes of a good delta file."""
    path = tmp_path_factory.mktemp("good") / "good"
    encode(*states, FILES, NewFile(path), EFFORT)
    return path.read_bytes()


@pytest.fixture
def parts(states, tmp_path):
    """(head, stream, foot) of a good delta file."""
    encode(*states, FILES, NewFile(tmp_path / "good"), EFFORT)
    transition = Transition(*states)
    stream = b"".join(piece for piece, _ in transition)
    with DeltaFile.open(tmp_path / "good") as file:
        return file.head, stream, file.foot


def written(path, head, stream, foot):
    body = opening(head) + stream + closing(foot)
    path.write_bytes(body + blake3(body).digest())
    return path


def replaced(value, **fields):
    return msgspec.structs.replace(value, **fields)


def test_a_file_put_together_from_its_parts_is_the_file_that_encode_writes(parts, tmp_path):
    assert written(tmp_path / "own", *parts).read_bytes() == (tmp_path / "good").read_bytes()


def test_what_does_not_fit_together_is_refused_when_the_file_is_opened(parts, tmp_path):
    head, stream, foot = parts
    hashes = hash_block(0, bytes(32)) + hash_block(1, bytes(32))
    raw_b = frame(RawBlock(1, 0, 4, RAW, b"wxyz"))
    full_b = (head.tensors[0], TensorEntry(SPECS[1], "full"))
    gone_b = (head.tensors[0], TensorEntry(SPECS[1], "deleted"))
    other_file = FileSet((TensorFile("m", header(a=("BF16", [300], 0, 600), c=("U8", [4], 600, 604))),), b"", False)
    outside = replaced(FILES, files=(TensorFile("../m", FILES.files[0].header),), folder=True)
    cases = [
        (replaced(head, layout=bytes(32)), stream, foot, "layout"),
        (replaced(head, files=other_file), stream, foot, "files to be written"),
        (replaced(head, files=outside), stream, foot, "outside its folder"),
        (replaced(head, kind="snapshot"), stream, foot, "full or aliases"),
        (replaced(head, base_layout=b""), stream, foot, "names its base"),
        (replaced(head, class_map=b"\x09\x03"), stream, foot, "class map"),
        (replaced(head, tensors=head.tensors[::-1]), stream, foot, "sorted"),
        (replaced(head, tensors=full_b), hashes, foot, "0 of 4 elements"),
        (replaced(head, tensors=full_b), hashes + frame(RawBlock(1, 0, 4, CLASSES, b"x")), foot, "operation, full"),
        (replaced(head, tensors=gone_b), stream, foot, "layout"),
        (head, stream, replaced(foot, bases=b""), "does not fit"),
        (head, stream, replaced(foot, changed=foot.elements + 1), "does not fit"),
        (head, b"", foot, "one hash for each"),
        (head, hash_block(0, bytes(32)), foot, "one hash for each"),
        (head, stream + hash_block(1, bytes(32)), foot, "two hashes"),
        (head, hashes + raw_b + raw_b, foot, "two blocks"),
        (head, hashes + frame(RawBlock(2, 0, 4, RAW, b"wxyz")), foot, "names tensor 2 of 2"),
        (head, hashes + frame(RawBlock(1, 1, 4, RAW, b"wxyz")), foot, "reaches past"),
        (head, stream[:-1], foot, "inside a block"),
    ]
    for number, (*wrong, said) in enumerate(cases):
        with pytest.raises(WireError, match=said), DeltaFile.open(written(tmp_path / f"case{number}", *wrong)):
            pass


def test_a_hash_or_a_digest_that_is_not_that_of_the_result_is_found_by_verify(parts, states, tmp_path):
    head, stream, foot = parts
    base = tmp_path / "base"
    data = b"".join(states[0].read(spec.name, 0, spec.elements).tobytes() for spec in SPECS)
    base.write_bytes(len(FILES.files[0].header).to_bytes(8, "little") + FILES.files[0].header + data)
    good = written(tmp_path / "own", head, stream, foot)
    digest = written(tmp_path / "digest", head, stream, replaced(foot, digest=bytes(32)))
    lying = stream[:-41] + hash_block(1, bytes(32))
    wrong = written(tmp_path / "hash", head, lying, foot)
    with TensorFiles.open(base) as opened:
        with DeltaFile.open(good) as file:
            verify(opened, file, EFFORT)
            assert np.array_equal(layered(opened, [file]).read("a", 0, 300), states[1].read("a", 0, 300))
        for path, said in ((digest, "state digest"), (wrong, "'b' does not become")):
            with DeltaFile.open(path) as file, pytest.raises(CheckpointError, match=said):
                verify(opened, file, EFFORT)


@settings(deadline=None, max_examples=150)
@given(
    flips=st.lists(st.integers(0, 10**7), min_size=1, max_size=3), cut=st.integers(0, 40), junk=st.binary(max_size=99)
)
def test_damaged_files_raise_wire_error_and_nothing_else(good, tmp_path_factory, flips, cut, junk):
    path = tmp_path_factory.getbasetemp() / "damaged"
    damaged = bytearray(good)
    for flip in flips:
        damaged[flip // 8 % len(good)] ^= 1 << flip % 8
    resealed = bytes(damaged[:-32]) + blake3(bytes(damaged[:-32])).digest()
    for content in (bytes(damaged), resealed, good[: len(good) - cut - 1], good + junk + b"x", MAGIC + junk, junk):
        path.write_bytes(content)
        try:
            with DeltaFile.open(path) as file:
                verify(None, file, EFFORT)
        except WireError:
            continue
        assert content == resealed  # a flip in what only the result can prove: a digest of the foot, a name of the head


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"[]", "no safetensors header"),
        (b'{"a": 1}', "no safetensors header"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}', "repeats"),
        (header(a=("F4", [2], 0, 1)), "not supported"),
        (header(a=("U8", [-1], 0, 0)), "no safetensors header"),
        (header(a=("U8", [2], 0, 1)), "not 2 bytes"),
        (header(a=("U8", [1], 1, 2)), "behind the tensor before"),
        (header(a=("U8", [2], 0, 2), b=("U8", [2], 1, 3)), "behind the tensor before"),
        (b"[" * 100_000, "no safetensors header"),
    ],
)
def test_a_header_is_believed_in_nothing(bad, said):
    with pytest.raises(WireError, match=said):
        stored_in(FileSet((TensorFile("m", bad),), b"", False))
