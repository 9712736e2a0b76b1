"""`aurora-bootstrap`: the one command an operator types. Nothing heavy is imported before it serves."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from aurora_bootstrap.config import BootstrapConfig
from aurora_p2p.errors import UsageError
from aurora_p2p.local.cli import run_cli

DESCRIPTION = """\
A bootstrap is where the members of a swarm find each other: nodes register their
addresses with it and ask it for others. It signs nothing and sees no weights,
no prompts and no results. Run one on any machine that the others can reach."""
EXAMPLES = """\
examples:
  aurora-bootstrap serve                          listen on all interfaces, port 4101
  aurora-bootstrap serve --listen 127.0.0.1:4101  for this machine only
  aurora-bootstrap serve --listen 0.0.0.0:0       on any free port

It prints its addresses, one a line, when it is ready. Give one to `aurora-host init
--bootstrap ADDRESS` or `aurora-node join --bootstrap ADDRESS`. Ctrl-C ends it."""


def main() -> NoReturn:
    """Entry point of `aurora-bootstrap`."""
    run_cli(run)


def run(words: Sequence[str] | None = None) -> None:
    """Parse the command line and do what it says. Raises AuroraError."""
    options = parser().parse_args(words)
    config = BootstrapConfig(options.home)
    if options.listen:
        config = replace(config, listen=tuple(map(_multiaddr, options.listen)))

    from aurora_bootstrap.service import serve

    serve(config, as_json=options.json)


def parser() -> argparse.ArgumentParser:
    """The command line of aurora-bootstrap."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser("aurora-bootstrap", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=raw)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run a bootstrap", epilog=EXAMPLES, formatter_class=raw)
    serve.add_argument(
        "--listen",
        action="append",
        metavar="IP:PORT",
        help="where to listen, also as a TCP multiaddr; may be repeated (default: 0.0.0.0:4101)",
    )
    serve.add_argument(
        "--home",
        type=Path,
        default=BootstrapConfig.default_home(),
        metavar="DIR",
        help="folder that keeps the key, and so the address (default: %(default)s, or $AURORA_HOME/bootstrap)",
    )
    serve.add_argument("--json", action="store_true", help="print one JSON object when ready instead of plain lines")
    return top


def _multiaddr(text: str) -> str:
    """ "127.0.0.1:4101" or "[::1]:4101" as a multiaddr; a multiaddr as it is. Raises UsageError."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not 0 <= int(port) < 65536:
            raise ValueError(port)
    except ValueError as error:
        raise UsageError(f"cannot listen on {text!r}", hint="write it like 0.0.0.0:4101 or [::]:4101") from error
    return f"/ip{ip.version}/{ip}/tcp/{int(port)}"


if __name__ == "__main__":
    main()
