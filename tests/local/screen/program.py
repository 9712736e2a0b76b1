"""A program with a screen, for a pseudo-terminal: `python -m tests.local.screen.program MODE [SOCKET]`.

keys      p, c and q do something         still    nothing changes; ends by itself after a few looks
broken    the render fails                noisy    writes to standard error meanwhile
attach    attaches to the control socket given
"""

import sys
from pathlib import Path

import trio

from aurora_p2p.errors import UsageError
from aurora_p2p.local.screen.driver import CloseScreen, run_screen
from aurora_p2p.local.screen.keys import Key, Prompt
from aurora_p2p.local.screen.panels import Section, arrange, line
from aurora_p2p.local.screen.session import View, attach

LOOKS = 6


class Program:
    def __init__(self, mode):
        self.mode, self.looks, self.state = mode, 0, "working"

    async def look(self):
        self.looks += 1
        if self.mode in ("still", "noisy") and self.looks > LOOKS:
            raise CloseScreen
        if self.mode == "noisy":
            print(f"warning {self.looks}", file=sys.stderr, flush=True)
        return {"state": self.state, "broken": self.mode == "broken" and self.looks > 1}

    async def pause(self):
        self.state = "paused"
        return "it is paused"

    async def caps(self, typed):
        if not typed.isdecimal():
            raise UsageError(f"{typed} is no number", hint="type digits")
        return f"caps are {typed}"

    async def close(self):
        raise CloseScreen


def render(status, width, height):
    if status.get("broken"):
        raise RuntimeError("the render is broken")
    sections = [Section("state", [line(f"state {status['state']}"), line(f"size {width}x{height}")])]
    return arrange([line("a program")], [sections], [width], width, height)


def main(mode, *rest):
    if mode == "attach":
        attach(View(render, lambda status: f"state {status['state']}", "it has stopped"), Path(rest[0]))
        return
    program = Program(mode)
    keys = {
        "p": Key("pause", program.pause),
        "c": Prompt("caps", "caps?", program.caps),
        "q": Key("quit", program.close),
    }
    trio.run(run_screen, program.look, render, keys)


if __name__ == "__main__":
    main(*sys.argv[1:])
