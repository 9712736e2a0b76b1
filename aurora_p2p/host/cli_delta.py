"""`aurora-host delta`: deltas between checkpoints of one's own, in files, without any swarm."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurora_p2p.errors import UsageError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.output import Output

if TYPE_CHECKING:  # numba: only when a delta is really made or read
    from aurora_p2p.artifact.container import DeltaFile
    from aurora_p2p.artifact.tensorfiles import TensorFiles
    from aurora_p2p.host.delta_files import Effort

ABOUT = """\
Deltas between safetensors checkpoints, in files: for storage, transfer and inspection, without
a swarm. A checkpoint is a safetensors file, or a folder with model.safetensors or an index and
its shards. Delta files are not signed: take them only from where you would take the weights."""
EXAMPLES = """\
  aurora-host delta encode step-10 step-11 -o 11.aurora      what changed, about 1 % of the size
  aurora-host delta apply step-10 11.aurora -o step-11       byte for byte the files of step-11
  aurora-host delta encode step-0 -o 0.aurora                a snapshot: no base
  aurora-host delta squash 11.aurora 12.aurora --base step-10 -o 10-12.aurora
  aurora-host delta info 11.aurora
  aurora-host delta verify 11.aurora step-10"""

COMPILING = "compiling the codec for this processor, once: about 15 seconds of a core"


def delta_command() -> Command:
    """The row of the table."""
    about = "deltas between safetensors checkpoints, in files"
    return Command("delta", about, _run, _arguments, ABOUT, EXAMPLES)


def _arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    encode = _verb(verbs, "encode", "write what changed between two checkpoints", _encode)
    encode.add_argument("base", nargs="?", type=Path, metavar="BASE", help="checkpoint before; none: a snapshot")
    encode.add_argument("new", type=Path, metavar="NEW", help="checkpoint after")
    _output(encode)
    apply = _verb(verbs, "apply", "write the checkpoint that deltas lead to", _apply)
    apply.add_argument("paths", nargs="+", type=Path, metavar="BASE|FILE", help="the base, then delta files in order")
    place = apply.add_mutually_exclusive_group(required=True)
    place.add_argument("-o", "--output", type=Path, metavar="OUT", help="new checkpoint to write")
    place.add_argument("--in-place", action="store_true", help="replace the base itself, safely, once all is proven")
    info = _verb(verbs, "info", "say what a delta file holds", _info, threads=False)
    info.add_argument("file", type=Path, metavar="FILE", help="delta file to look at")
    verify = _verb(verbs, "verify", "check a delta file, and with its base the result", _verify)
    verify.add_argument("file", type=Path, metavar="FILE", help="delta file to check")
    verify.add_argument("base", nargs="?", type=Path, metavar="BASE", help="checkpoint it was made from")
    squash = _verb(verbs, "squash", "make one delta file of several", _squash)
    squash.add_argument("files", nargs="+", type=Path, metavar="FILE", help="delta files in order")
    squash.add_argument(
        "--base", type=Path, metavar="BASE", help="checkpoint the first was made from; a snapshot: none"
    )
    _output(squash)


def _verb(verbs: Any, name: str, about: str, run: Any, *, threads: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    if threads:
        parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads (default: all processors)")
    parser.set_defaults(verb_run=run)
    return parser


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="delta file to write")
    parser.add_argument("--force", action="store_true", help="replace the output file if it exists")


def _run(home: Path, options: argparse.Namespace) -> None:
    if getattr(options, "threads", 0) < 0:
        raise UsageError("--threads is a number above 0")
    options.verb_run(options, Output(as_json=options.json))


def _encode(options: argparse.Namespace, out: Output) -> None:
    from aurora_p2p.host.delta_files import NewFile, encode

    with ExitStack() as opened:
        base, new = _checkpoint(opened, options.base), _checkpoint(opened, options.new)
        assert new is not None  # noqa: S101  # argparse
        with _effort(options, out) as effort:
            encode(base, new, new.files, NewFile(options.output, options.force), effort)
    _report_file(options.output, out, "encoded")


def _apply(options: argparse.Namespace, out: Output) -> None:
    from aurora_p2p.artifact.tensorwrite import finish
    from aurora_p2p.host.delta_files import apply

    *before, last = options.paths
    if options.in_place and finish(options.paths[0]):
        out.event("finished", f"finished the interrupted apply in {options.paths[0]}", output=str(options.paths[0]))
        return
    with ExitStack() as opened:
        if _is_delta(options.paths[0]):
            base, chain = None, [_delta(opened, path) for path in options.paths]
        elif before:
            base, chain = _checkpoint(opened, before[0]), [_delta(opened, path) for path in (*before[1:], last)]
        else:
            raise UsageError(f"{last} is no delta file, and there is nothing to apply to it")
        target = base.path if options.in_place and base else options.output
        if target is None:
            raise UsageError("a snapshot has no base to be replaced", hint="use -o")
        with _effort(options, out) as effort:
            apply(base, chain, target, effort, replace=options.in_place)
        digest, copied = chain[-1].foot.digest.hex(), _copy_others(base, target, replace=options.in_place)
    others = f", with {copied} other {'file' if copied == 1 else 'files'} of the base" if copied else ""
    text = f"wrote {target}{others}; every tensor has its recorded BLAKE3"
    out.event("applied", text, output=str(target), digest=digest, copied=copied)


def _copy_others(base: TensorFiles | None, target: Path, *, replace: bool) -> int:
    """Take the base's config, tokenizer and the like along; returns how many. Weights and folders stay behind."""
    import shutil

    if replace or base is None or not base.path.is_dir() or not target.is_dir():
        return 0
    weights = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".aurora")
    others = [path for path in base.path.iterdir() if path.is_file() and not path.name.endswith(weights)]
    for path in others:
        shutil.copy2(path, target / path.name)
    return len(others)


def _info(options: argparse.Namespace, out: Output) -> None:
    from aurora_p2p.host.delta_files import describe

    with ExitStack() as opened:
        facts = describe(_delta(opened, options.file))
    if options.json:
        print(json.dumps(facts))
    else:
        print(_text(facts))


def _verify(options: argparse.Namespace, out: Output) -> None:
    from aurora_p2p.host.delta_files import verify

    with ExitStack() as opened:
        file, base = _delta(opened, options.file), _checkpoint(opened, options.base)
        with _effort(options, out) as effort:
            verify(base, file, effort)
        proven = base is not None or file.head.kind == "snapshot"
        digest = file.foot.digest.hex()
    what = "every hash and digest of the result" if proven else "its seal and every CRC; with BASE, the result as well"
    out.event("verified", f"{options.file} is sound: {what}", file=str(options.file), result=proven, digest=digest)


def _squash(options: argparse.Namespace, out: Output) -> None:
    from aurora_p2p.host.delta_files import NewFile, squash

    with ExitStack() as opened:
        base, chain = _checkpoint(opened, options.base), [_delta(opened, path) for path in options.files]
        with _effort(options, out) as effort:
            squash(base, chain, NewFile(options.output, options.force), effort)
    _report_file(options.output, out, "squashed")


def _report_file(path: Path, out: Output, name: str) -> None:
    from aurora_p2p.host.delta_files import describe

    with ExitStack() as opened:
        facts = describe(_delta(opened, path))
    out.event(name, _text(facts), **facts) if out.as_json else print(_text(facts))


def _text(facts: dict[str, Any]) -> str:
    """A few lines for a person."""
    from aurora_p2p.local.output import clean
    from aurora_p2p.local.screen.figures import size

    tensors = ", ".join(f"{count} {op}" for op, count in facts["tensors"].items() if count)
    modes = ", ".join(f"{count} {mode} ({size(facts['block_bytes'][mode])})" for mode, count in facts["blocks"].items())
    share = facts["file_bytes"] / facts["checkpoint_bytes"] if facts["checkpoint_bytes"] else 0.0
    base = f"base      {facts['base_digest']}\n" if facts["base_digest"] else ""
    return (
        f"{clean(facts['file'], 500)}: {facts['kind']}, format {facts['format']}, not signed\n"
        f"size      {size(facts['file_bytes'])} for a checkpoint of {size(facts['checkpoint_bytes'])} ({share:.2%})\n"
        f"tensors   {tensors or 'none'}\n"
        f"changed   {facts['changed']:,} of {facts['elements']:,} elements ({facts['changed_share']:.3%}), "
        f"{facts['bits_per_change']:.2f} bits each\n"
        f"blocks    {modes or 'none'}\n"
        f"{base}"
        f"result    {facts['digest']}"
    )


# ---- inputs


def _checkpoint(opened: ExitStack, path: Path | None) -> TensorFiles | None:
    from aurora_p2p.artifact.tensorfiles import TensorFiles

    return None if path is None else opened.enter_context(TensorFiles.open(path))


def _delta(opened: ExitStack, path: Path) -> DeltaFile:
    from aurora_p2p.artifact.container import DeltaFile

    return opened.enter_context(DeltaFile.open(path))


def _is_delta(path: Path) -> bool:
    from aurora_p2p.artifact.container import MAGIC

    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


@contextmanager
def _effort(options: argparse.Namespace, out: Output) -> Iterator[Effort]:
    from aurora_p2p.artifact.parallel import processors
    from aurora_p2p.delta.warm import compile_once
    from aurora_p2p.host.delta_files import Effort

    compile_once(lambda: print(COMPILING, file=sys.stderr, flush=True))
    with out.live() as show:
        yield Effort(options.threads or processors(), show)
