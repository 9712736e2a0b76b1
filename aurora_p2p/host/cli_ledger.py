"""`aurora-host ledger`: what a host's books say, for people and scripts, also while it runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from aurora_p2p.errors import StoreError
from aurora_p2p.local.cli import Command
from aurora_p2p.local.output import Output, clean

if TYPE_CHECKING:  # sqlite-utils: only when a ledger is really read
    from aurora_p2p.store.reading import Reading

ABOUT = """\
The ledger of a host: publications, steps, leases, and every admitted sample with its node's
signature. Reads a copy, so that a host may run meanwhile; nothing is ever changed. Neither
keys nor the run's secret are shown."""
EXAMPLES = """\
  aurora-host ledger show                       how much of what, by step, node and refusal
  aurora-host ledger export -o samples.jsonl    every row, one JSON object a line
  aurora-host ledger export --step 7 | jq .node
  aurora-host ledger verify                     every page, signature and seed"""
SHOWN_PROBLEMS = 20
"""Lines of a damaged ledger that a person reads; --json has all."""
SHOWN_NODES = 10


def ledger_command() -> Command:
    """The row of the table."""
    about = "what the host's books say: counts, export, proof"
    return Command("ledger", about, _run, _arguments, ABOUT, EXAMPLES)


def _arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _verb(verbs, "show", "count publications, steps, leases, samples and refusals", _show)
    export = _verb(verbs, "export", "write every row as one JSON object a line", _export)
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="new file to write (default: stdout)")
    export.add_argument("--force", action="store_true", help="replace the output file if it exists")
    export.add_argument("--step", type=int, metavar="N", help="only what belongs to one step")
    _verb(verbs, "verify", "check every page, row, signature and seed", _verify)


def _verb(verbs: Any, name: str, about: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    parser.add_argument("--file", type=Path, metavar="FILE", help="another ledger: a backup's (default: this home's)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    home = "folder of keys, settings and disk"  # also accepted before the verb; unset here, that one holds
    parser.add_argument("--home", type=Path, metavar="DIR", default=argparse.SUPPRESS, help=home)
    parser.set_defaults(verb_run=run)
    return parser


def _run(home: Path, options: argparse.Namespace) -> None:
    from aurora_p2p.store.reading import open_copy

    path = options.file or home / "ledger.sqlite"
    with open_copy(path) as reading:
        options.verb_run(home, options, path, reading)


def _show(home: Path, options: argparse.Namespace, path: Path, reading: Reading) -> None:
    summary = reading.summary()
    print(json.dumps(summary) if options.json else _text(summary))


def _text(summary: dict[str, Any]) -> str:
    """A few lines for a person."""
    states, nodes = summary["publications"], list(summary["by_node"].items())
    version = summary["newest_version"]
    lines = [
        f"run           {summary['run']}, opened {summary['opened']} times",
        f"publications  {_counts(states) or 'none'}; newest version {'none' if version is None else version}, "
        f"highest seq {summary['highest_seq']}, generation {summary['generation']}",
        f"leases        {summary['live_leases']} live",
        f"samples       {summary['samples']:,} admitted in the steps kept",
        *(
            f"  step {step['step']:<8} {step['admitted']:,} of {step['samples']:,} samples, {step['prompts']:,} prompts"
            for step in summary["steps"]
        ),
        *(f"  {clean(node)}  {count:,}" for node, count in nodes[:SHOWN_NODES]),
        *([f"  and {len(nodes) - SHOWN_NODES} other nodes"] if len(nodes) > SHOWN_NODES else []),
        f"refused       {_counts(summary['refusals']) or 'nothing'}",
    ]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {clean(name)}" for name, count in counts.items())


def _export(home: Path, options: argparse.Namespace, path: Path, reading: Reading) -> None:
    rows = 0
    with _target(options) as file:
        for entry in reading.entries(options.step):
            file.write(json.dumps(entry) + "\n")
            rows += 1
    if options.output is not None:
        out = Output(as_json=options.json)
        out.event("exported", f"wrote {rows:,} rows to {options.output}", output=str(options.output), rows=rows)


@contextmanager
def _target(options: argparse.Namespace) -> Iterator[TextIO]:
    if options.output is None:
        yield sys.stdout
        return
    try:
        file = options.output.open("w" if options.force else "x")
    except FileExistsError as error:
        raise StoreError(f"{options.output} exists", hint="--force replaces it") from error
    with file:
        yield file


def _verify(home: Path, options: argparse.Namespace, path: Path, reading: Reading) -> None:
    from aurora_p2p.host.cli_setup import CONFIG
    from aurora_p2p.host.config import HostConfig
    from aurora_p2p.local.config import load_config
    from aurora_p2p.store.proof import problems_of

    config = home / CONFIG
    max_lag = (load_config(config, HostConfig) if config.is_file() else HostConfig()).max_lag
    problems = list(problems_of(reading, max_lag))
    summary = reading.summary() if not problems else {}
    if options.json:
        samples = summary.get("samples", 0)
        print(json.dumps({"file": str(path), "sound": not problems, "samples": samples, "problems": problems}))
    else:
        for problem in problems[:SHOWN_PROBLEMS]:
            print(clean(problem, 500))
    if problems:
        hint = "restore the home from a backup (docs/operator.md), and look for the cause: the disk, or a second writer"
        raise StoreError(f"{path} is damaged: {len(problems)} problem{'s' * (len(problems) > 1)}", hint=hint)
    if not options.json:
        proven = f"{summary['samples']:,} samples with their signatures and seeds"
        print(f"{path} is sound: {proven}; publications: {_counts(summary['publications']) or 'none'}")
