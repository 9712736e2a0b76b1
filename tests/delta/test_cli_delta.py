"""`aurora-host delta` on generated checkpoints, through the command line's own entry."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aurora_p2p.artifact.tensorfiles import INDEX, READY, TIED_BYTES, TensorFiles
from aurora_p2p.delta.digest import full_digest
from aurora_p2p.delta.warm import main as compile_kernels
from aurora_p2p.host.cli import main
from aurora_p2p.testing.faults import disk_full, kill, plan
from aurora_p2p.types import DTYPES, TensorSpec

METADATA = {"format": "pt", "note": "kept"}


@pytest.fixture(autouse=True, scope="module")
def kernels():
    compile_kernels()


def run(capsys, *words):
    """(status, stdout, stderr) of `aurora-host delta ...`."""
    with pytest.raises(SystemExit) as ended:
        main(["delta", *map(str, words)])
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def ok(capsys, *words):
    status, out, err = run(capsys, *words)
    assert status == 0, err
    return out


def write_raw(path: Path, tensors, metadata=METADATA):
    """A safetensors file of (dtype, shape, bytes) by name, as another program may write it: in any order, unaligned."""
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header, indent=1).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(row[2] for row in tensors.values()))


def tensors_of(seed, moved=0.0):
    """Every dtype, a 0-d and an empty tensor, one of several blocks; `moved`: share of the elements that differ."""
    rng = np.random.default_rng(0)
    steps = np.random.default_rng(seed)
    shapes = {f"t.{dtype}": (dtype, (7, 33)) for dtype in DTYPES}
    shapes |= {"big": ("BF16", (1100, 1000)), "scalar": ("F32", ()), "empty": ("I64", (0, 3)), "odd": ("U8", (3,))}
    made = {}
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        bits = rng.integers(0, 256, size * DTYPES[dtype], np.uint8).view(f"u{DTYPES[dtype]}")
        made[name] = (dtype, shape, (bits + (steps.random(size) < moved).astype(bits.dtype)).tobytes())
    return made


def write_sharded(folder: Path, tensors, shards=3):
    folder.mkdir()
    names, weight_map = list(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        write_raw(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    (folder / "config.json").write_text('{"model_type": "tiny"}')


def contents(path: Path):
    if path.is_file():
        return path.read_bytes()
    return {file.name: file.read_bytes() for file in sorted(path.iterdir()) if "safetensors" in file.name}


@pytest.fixture
def steps(tmp_path):
    """Four sharded checkpoints, each a step after the one before."""
    for number in range(4):
        write_sharded(tmp_path / f"s{number}", tensors_of(number, 0.02 if number else 0.0))
    return tmp_path


@pytest.mark.parametrize("threads", [1, 3])
def test_apply_writes_the_new_checkpoint_byte_for_byte_with_its_shards_index_and_metadata(steps, capsys, threads):
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d", "--threads", threads)
    ok(capsys, "apply", steps / "s0", steps / "d", "-o", steps / "out", "--threads", threads)
    assert contents(steps / "out") == contents(steps / "s1")
    assert (steps / "out" / "config.json").read_text() == '{"model_type": "tiny"}'
    assert sorted(path.name for path in steps.iterdir()) == ["d", "out", "s0", "s1", "s2", "s3"]
    assert (steps / "d").stat().st_size < 0.3 * sum(len(file) for file in contents(steps / "s1").values())


def test_threads_do_not_change_a_byte_of_a_delta_file(steps, capsys):
    for threads in (1, 2, 5):
        ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / f"d{threads}", "--threads", threads)
    assert contents(steps / "d1") == contents(steps / "d2") == contents(steps / "d5")


def test_a_single_file_written_by_the_safetensors_library_comes_back_as_it_was(tmp_path, capsys):
    rng = np.random.default_rng(3)
    base = {"w": rng.standard_normal((40, 50)).astype(np.float32), "b": np.zeros((), np.float16), "i": np.arange(9)}
    new = base | {"w": base["w"] * np.float32(1 + 1e-7), "i": base["i"].reshape(3, 3)}
    save_file(base, tmp_path / "base.safetensors", METADATA)
    save_file(new, tmp_path / "new.safetensors", METADATA)
    ok(capsys, "encode", tmp_path / "base.safetensors", tmp_path / "new.safetensors", "-o", tmp_path / "d")
    ok(capsys, "apply", tmp_path / "base.safetensors", tmp_path / "d", "-o", tmp_path / "out.safetensors")
    assert contents(tmp_path / "out.safetensors") == contents(tmp_path / "new.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")
    assert all(np.array_equal(loaded[name], new[name]) for name in new)


def test_a_snapshot_needs_no_base_and_squashes_with_the_deltas_after_it(steps, capsys):
    ok(capsys, "encode", steps / "s0", "-o", steps / "snapshot")
    ok(capsys, "verify", steps / "snapshot")
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d1")
    ok(capsys, "squash", steps / "snapshot", steps / "d1", "-o", steps / "whole")
    ok(capsys, "encode", steps / "s1", "-o", steps / "direct")
    assert contents(steps / "whole") == contents(steps / "direct")
    ok(capsys, "apply", steps / "whole", "-o", steps / "out")
    assert contents(steps / "out") == contents(steps / "s1")


def test_a_squash_is_the_delta_that_would_have_been_made_directly(steps, capsys):
    for number in (1, 2, 3):
        ok(capsys, "encode", steps / f"s{number - 1}", steps / f"s{number}", "-o", steps / f"d{number}")
    deltas = [steps / f"d{number}" for number in (1, 2, 3)]
    ok(capsys, "squash", *deltas, "--base", steps / "s0", "-o", steps / "squashed")
    ok(capsys, "encode", steps / "s0", steps / "s3", "-o", steps / "direct")
    assert contents(steps / "squashed") == contents(steps / "direct")
    ok(capsys, "apply", steps / "s0", *deltas, "-o", steps / "out")
    assert contents(steps / "out") == contents(steps / "s3")


def structural(tmp_path):
    """Two checkpoints whose tables differ in every way there is."""
    rng = np.random.default_rng(5)
    big = rng.integers(0, 2**16, (TIED_BYTES // 2,), np.uint16)
    after = big + (rng.random(big.size) < 0.01).astype(np.uint16)
    shape = big.shape
    before = {
        "both_tied.a": ("BF16", shape, big.tobytes()),
        "both_tied.b": ("BF16", shape, big.tobytes()),
        "dtype": ("F32", (64,), bytes(256)),
        "gone": ("U8", (5,), b"12345"),
        "shape": ("U8", (6,), b"123456"),
        "ties_later": ("BF16", shape, after.tobytes()),
    }
    later = {
        "both_tied.a": ("BF16", shape, after.tobytes()),
        "both_tied.b": ("BF16", shape, big.tobytes()),
        "dtype": ("BF16", (64,), bytes(128)),
        "new": ("I64", (), bytes(8)),
        "shape": ("U8", (2, 3), b"123456"),
        "ties_later": ("BF16", shape, after.tobytes()),
    }
    write_sharded(tmp_path / "before", before, 2)
    write_sharded(tmp_path / "later", later, 3)


def test_tensors_may_appear_vanish_change_dtype_or_shape_and_be_tied_or_untied(tmp_path, capsys):
    structural(tmp_path)
    for base, new in (("before", "later"), ("later", "before")):  # and back
        ok(capsys, "encode", tmp_path / base, tmp_path / new, "-o", tmp_path / f"to-{new}")
        ok(capsys, "apply", tmp_path / base, tmp_path / f"to-{new}", "-o", tmp_path / f"{new}-again")
        ok(capsys, "verify", tmp_path / f"to-{new}", tmp_path / base)
        assert contents(tmp_path / f"{new}-again") == contents(tmp_path / new)
    facts = json.loads(ok(capsys, "info", tmp_path / "to-later", "--json"))
    assert facts["tensors"] == {"delta": 2, "full": 3, "alias": 1, "deleted": 1, "unchanged": 1}
    ok(
        capsys,
        "squash",
        tmp_path / "to-later",
        tmp_path / "to-before",
        "--base",
        tmp_path / "before",
        "-o",
        tmp_path / "d",
    )
    assert json.loads(ok(capsys, "info", tmp_path / "d", "--json"))["changed"] == 0
    ok(capsys, "apply", tmp_path / "before", tmp_path / "d", "-o", tmp_path / "there-and-back")
    assert contents(tmp_path / "there-and-back") == contents(tmp_path / "before")


def test_the_digests_of_a_delta_file_are_those_of_the_checkpoints(steps, capsys):
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d")
    facts = json.loads(ok(capsys, "info", steps / "d", "--json"))
    for key, number in (("base_digest", 0), ("digest", 1)):
        tensors = tensors_of(number, 0.02 if number else 0.0)
        specs = [TensorSpec(name, tensors[name][0], tensors[name][1]) for name in sorted(tensors)]
        bits = {spec.name: np.frombuffer(tensors[spec.name][2], f"u{DTYPES[spec.dtype]}") for spec in specs}
        assert facts[key] == full_digest(specs, bits).hex()
    assert facts["signed"] is False
    assert 0.015 < facts["changed_share"] < 0.025
    assert 0 < facts["bits_per_change"] < 32
    assert "not signed" in ok(capsys, "info", steps / "d")


# ---- refusals


def test_another_base_is_refused_and_the_first_tensor_that_differs_is_named(steps, capsys):
    ok(capsys, "encode", steps / "s1", steps / "s2", "-o", steps / "d")
    for words in (
        ("apply", steps / "s3", steps / "d", "-o", steps / "out"),
        ("verify", steps / "d", steps / "s3"),
        ("squash", steps / "d", "--base", steps / "s3", "-o", steps / "out"),
    ):
        status, _, err = run(capsys, *words)
        assert (status, "is not the base" in err, "first tensor that differs is 'big'" in err) == (66, True, True), err
    assert not (steps / "out").exists()
    assert not list(steps.glob("*.partial"))


def test_a_difference_in_a_tensor_that_the_delta_leaves_alone_is_found_as_well(tmp_path, capsys):
    rows = {"a": ("U8", (3,), b"abc"), "b": ("U8", (3,), b"xyz")}
    write_raw(tmp_path / "base", rows)
    write_raw(tmp_path / "new", rows | {"a": ("U8", (3,), b"abd")})
    write_raw(tmp_path / "other", rows | {"b": ("U8", (3,), b"xyy")})
    ok(capsys, "encode", tmp_path / "base", tmp_path / "new", "-o", tmp_path / "d")
    status, _, err = run(capsys, "apply", tmp_path / "other", tmp_path / "d", "-o", tmp_path / "out")
    assert (status, "differs is 'b'" in err) == (66, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": None}, "the base lacks the tensor 'a'"),
        ({"a": ("I8", (3,), b"abc")}, "'a' is I8 [3] in the base, and the delta is for U8 [3]"),
        ({"a": ("U8", (1, 3), b"abc")}, "'a' is U8 [1, 3] in the base"),
        ({"more": ("U8", (), b"x")}, "the base has a tensor 'more' that the delta does not know"),
    ],
)
def test_a_base_with_another_table_is_refused_by_name(tmp_path, capsys, change, said):
    rows = {"a": ("U8", (3,), b"abc"), "b": ("U8", (3,), b"xyz")}
    write_raw(tmp_path / "base", rows)
    write_raw(tmp_path / "new", rows | {"a": ("U8", (3,), b"abd")})
    write_raw(tmp_path / "other", {name: row for name, row in (rows | change).items() if row})
    ok(capsys, "encode", tmp_path / "base", tmp_path / "new", "-o", tmp_path / "d")
    status, _, err = run(capsys, "apply", tmp_path / "other", tmp_path / "d", "-o", tmp_path / "out")
    assert (status, said in err) == (66, True), err


def test_deltas_out_of_order_are_refused(steps, capsys):
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d1")
    ok(capsys, "encode", steps / "s2", steps / "s3", "-o", steps / "d3")
    status, _, err = run(capsys, "apply", steps / "s0", steps / "d1", steps / "d3", "-o", steps / "out")
    assert (status, "d3 does not start where" in err) == (66, True)


def test_what_is_missing_or_in_the_way_is_said_in_one_line(steps, capsys):
    d = steps / "d"
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", d)
    (steps / "junk").write_bytes(b"junk" * 40)
    (steps / "bare").mkdir()
    cases = [
        (("encode", steps / "none", steps / "s1", "-o", steps / "x"), 66, "none"),
        (("encode", steps / "bare", steps / "s1", "-o", steps / "x"), 66, "neither"),
        (("encode", steps / "junk", steps / "s1", "-o", steps / "x"), 66, "safetensors"),
        (("encode", steps / "s0", steps / "s1", "-o", d), 2, "--force"),
        (("encode", steps / "s0", steps / "s1", "-o", steps / "no" / "x"), 74, "cannot write"),
        (("apply", steps / "s0", d, "-o", steps / "s2"), 2, "exists"),
        (("apply", d, "-o", steps / "x"), 2, "needs its base"),
        (("apply", steps / "s0", "-o", steps / "x"), 2, "no delta file"),
        (("squash", d, "-o", steps / "x"), 2, "needs its base"),
        (("info", steps / "none"), 66, "No such file"),
        (("info", steps / "junk"), 65, "not a delta file"),
        (("info", steps / "s0"), 66, "folder"),
        (("verify", d, "--threads", "-1"), 2, "--threads"),
    ]
    for words, status, said in cases:
        found, _, err = run(capsys, *words)
        assert (found, said in err, len(err.splitlines()) <= 2) == (status, True, True), (words, err)
    ok(capsys, "encode", steps / "s0", steps / "s2", "-o", d, "--force")
    assert sorted(path.name for path in steps.iterdir()) == ["bare", "d", "junk", "s0", "s1", "s2", "s3"]


def test_every_flipped_bit_is_found_by_verify(tmp_path, capsys):
    rows = {"a": ("BF16", (400,), bytes(800)), "b": ("U8", (3,), b"xyz")}
    write_raw(tmp_path / "base", rows)
    write_raw(tmp_path / "new", rows | {"a": ("BF16", (400,), bytes(range(200)) * 4)})
    ok(capsys, "encode", tmp_path / "base", tmp_path / "new", "-o", tmp_path / "d")
    good = (tmp_path / "d").read_bytes()
    for at in range(0, len(good), 7):
        (tmp_path / "d").write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        assert run(capsys, "verify", tmp_path / "d")[0] == 65
    for cut in (0, 1, 20, len(good) - 1):
        (tmp_path / "d").write_bytes(good[:cut])
        assert run(capsys, "verify", tmp_path / "d")[0] == 65


# ---- in place, interrupted, JSON


def test_in_place_replaces_a_folder_or_a_file_and_leaves_nothing_else(steps, capsys):
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d")
    ok(capsys, "apply", steps / "s0", steps / "d", "--in-place")
    assert contents(steps / "s0") == contents(steps / "s1")
    assert sorted(path.name for path in (steps / "s0").iterdir()) == sorted(
        path.name for path in (steps / "s1").iterdir()
    )
    status, _, err = run(capsys, "apply", steps / "s0", steps / "d", "--in-place")
    assert (status, "is not the base" in err) == (66, True)
    assert contents(steps / "s0") == contents(steps / "s1")
    write_raw(steps / "one", tensors_of(0))
    write_raw(steps / "two", tensors_of(1, 0.1))
    ok(capsys, "encode", steps / "one", steps / "two", "-o", steps / "e")
    ok(capsys, "apply", steps / "one", steps / "e", "--in-place")
    assert contents(steps / "one") == contents(steps / "two")


def test_in_place_removes_shards_and_an_index_that_the_new_checkpoint_does_not_have(steps, capsys):
    (steps / "one").mkdir()
    write_raw(steps / "one" / "model.safetensors", tensors_of(1, 0.02))
    ok(capsys, "encode", steps / "s0", steps / "one", "-o", steps / "d")
    ok(capsys, "apply", steps / "s0", steps / "d", "--in-place")
    assert contents(steps / "s0") == contents(steps / "one")
    assert (steps / "s0" / "config.json").exists()
    with TensorFiles.open(steps / "s0") as files:
        assert not files.files.index


def test_the_last_line_of_json_says_what_was_written(steps, capsys):
    made = json.loads(ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d", "--json"))
    assert (made["event"], made["kind"], made["file_bytes"]) == ("encoded", "delta", (steps / "d").stat().st_size)
    done = json.loads(ok(capsys, "apply", steps / "s0", steps / "d", "-o", steps / "out", "--json"))
    assert (done["event"], done["digest"], done["copied"]) == ("applied", made["digest"], 1)
    assert json.loads(ok(capsys, "verify", steps / "d", "--json"))["result"] is False
    assert json.loads(ok(capsys, "verify", steps / "d", steps / "s0", "--json"))["result"] is True


def process(*words, **options):
    command = [sys.executable, "-m", "aurora_p2p.host.cli", "delta", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["files.synced", "files.ready", "files.moved"])
def test_a_kill_during_an_in_place_apply_leaves_the_old_or_the_new_checkpoint(steps, capsys, point):
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d")
    old = contents(steps / "s0")
    words = ("apply", steps / "s0", steps / "d", "--in-place")
    killed = process(*words, env=os.environ | plan(kill(point)).environment())
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    if point == "files.synced":
        assert contents(steps / "s0") == old
    else:
        assert (steps / "s0" / READY).is_dir()
        assert run(capsys, "encode", steps / "s0", "-o", steps / "x")[0] == 66
    ok(capsys, *words)
    assert contents(steps / "s0") == contents(steps / "s1")
    assert not [path for path in (steps / "s0").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_a_full_disk_is_said_and_leaves_nothing(steps, capsys, operation):
    ok(capsys, "encode", steps / "s0", steps / "s1", "-o", steps / "d")
    old = contents(steps / "s0")
    environment = os.environ | plan(disk_full(operation, "*")).environment()
    for words in (
        ("encode", steps / "s0", steps / "s1", "-o", steps / "x"),
        ("apply", steps / "s0", steps / "d", "-o", steps / "x"),
        ("apply", steps / "s0", steps / "d", "--in-place"),
    ):
        started = process(*words, env=environment)
        _, err = started.communicate()
        assert (started.returncode, "No space left" in err) == (74, True), err
    assert contents(steps / "s0") == old
    assert sorted(path.name for path in steps.iterdir()) == ["d", "s0", "s1", "s2", "s3"]
    assert not [path for path in (steps / "s0").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_leaves_no_partial_file(tmp_path):
    huge = tmp_path / "huge"
    text = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (2**36, 2**36)
    huge.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(huge, 8 + len(text) + 2**36)
    started = process("encode", huge, huge, "-o", tmp_path / "d", "--threads", "1")
    while not (tmp_path / "d.partial").exists():
        assert started.poll() is None, started.communicate()
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (130, "")
    assert [path.name for path in tmp_path.iterdir()] == ["huge"]


def test_a_tied_tensor_is_stored_once_and_small_equal_ones_are_no_ties(tmp_path, capsys):
    big, small = bytes(range(256)) * (TIED_BYTES // 256), b"\1" * 64
    rows = dict.fromkeys(("x.embed", "y.head"), ("U8", (TIED_BYTES,), big))
    write_raw(tmp_path / "m", rows | dict.fromkeys(("norm.a", "norm.b"), ("U8", (64,), small)))
    with TensorFiles.open(tmp_path / "m") as files:
        assert files.table.aliases == {"y.head": "x.embed"}
    ok(capsys, "encode", tmp_path / "m", "-o", tmp_path / "snapshot")
    ok(capsys, "apply", tmp_path / "snapshot", "-o", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "m")
