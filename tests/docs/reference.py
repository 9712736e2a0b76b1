"""docs/reference.md, rendered from the programs themselves: every command and option, every setting, every crash point.

`python -m tests.docs.reference` writes it; a test holds it equal.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from aurora_p2p.local.config import toml_value
from aurora_p2p.testing.faults import POINTS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
PROGRAMS = {
    "aurora-node": "aurora_node.cli",
    "aurora-host": "aurora_p2p.host.cli",
    "aurora-bootstrap": "aurora_bootstrap.cli",
}
SETTINGS = {
    "node.toml": "aurora_node.config:NodeConfig",
    "run.toml": "aurora_p2p.host.config:HostConfig",
    "bootstrap.toml": "aurora_bootstrap.config:BootstrapConfig",
}
HEAD = """\
# Reference

Every command with its options, every setting with its default, every crash point. Rendered from the programs
(`python -m tests.docs.reference`); `--help` of each command says more, with examples. What the words mean is in the
[glossary](glossary.md); how to use them in [operator](operator.md) and [volunteer](volunteer.md). Exit statuses are in
the [quickstart](quickstart.md#exit-status), metrics in [metrics](metrics.md).

`--home DIR` chooses the folder of keys, settings and disk; without it `$AURORA_HOME/node`, `/host` or `/bootstrap`,
else the platform's data folder. `--json` prints one JSON object, for scripts.
"""


POINTS_HEAD = """\
## Crash points

Where a plan of faults can kill, stop or delay a process ([testing](testing.md)).
"""


def parser_of(program: str) -> argparse.ArgumentParser:
    parser = importlib.import_module(PROGRAMS[program]).parser()
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, tuple[str, argparse.ArgumentParser]]:
    """Command -> (its line of help, its parser); one that has verbs is listed as `command verb`."""
    found: dict[str, tuple[str, argparse.ArgumentParser]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                verbs = commands_of(command)
                found |= {f"{name} {verb}": row for verb, row in verbs.items()} or {name: (about[name], command)}
    return found


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(how an option is written, what it means), without --help."""
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            yield _written(action), (action.help or "") % {"default": action.default}


def _written(action: argparse.Action) -> str:
    if action.choices is not None and not action.option_strings:
        return "|".join(map(str, action.choices))
    value = action.metavar if isinstance(action.metavar, str) else (action.dest or "").upper()
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return value if action.nargs != "?" else f"[{value}]"
    names = ", ".join(sorted(action.option_strings, key=len, reverse=True))
    return names if action.nargs == 0 else f"{names} {value}"


def render() -> str:
    parts = [HEAD]
    for program in PROGRAMS:
        parts.append(f"## {program}\n\n| command | what it does |\n|---|---|")
        commands = commands_of(parser_of(program))
        parts += [f"| `{name}` | {_cell(about)} |" for name, (about, _) in commands.items()]
        parts.append("\n| option | of | meaning |\n|---|---|---|")
        parts += [
            f"| `{written}` | {', '.join(where)} | {_cell(text)} |" for (written, text), where in _by_option(commands)
        ]
        parts.append("")
    for file, where in SETTINGS.items():
        parts.append(f"## {file}\n\n| key | default | meaning |\n|---|---|---|")
        parts += [f"| `{name}` | `{default}` | {_cell(text)} |" for name, default, text in settings_of(where)]
        parts.append("")
    parts.append(f"{POINTS_HEAD}\n| point | what is so when a process dies there |\n|---|---|")
    parts += [f"| `{name}` | {_cell(text)} |" for name, text in POINTS.items()]
    return "\n".join([*parts, ""])


def _by_option(
    commands: Mapping[str, tuple[str, argparse.ArgumentParser]],
) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Each option once, with the commands that have it; what all have is in the head."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, (_, parser) in commands.items():
        for option in options_of(parser):
            if not option[0].startswith(("--home", "--json")):
                found.setdefault((option[0].replace("|", "\\|"), option[1]), []).append(f"`{name}`")
    yield from found.items()


def settings_of(where: str) -> Iterator[tuple[str, str, str]]:
    """(key, default as TOML, meaning)."""
    module, _, name = where.partition(":")
    kind = getattr(importlib.import_module(module), name)
    for field in dataclasses.fields(kind):
        yield field.name, toml_value(field.default), field.metadata["meaning"]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def main() -> None:
    REFERENCE.write_text(render())


if __name__ == "__main__":
    main()
