"""Which engines there are, by the names that settings give them. Nothing heavy is imported: daemons check settings.

hf                                      transformers (hf.py)
simulated, simulated:h100, :4000        real weights and invented tokens, as fast as a device (simulated.py)
"""

from __future__ import annotations

from aurora_p2p.errors import UsageError

HF = "hf"
SIMULATED = "simulated"
ENGINES = (HF, SIMULATED)
DEVICES = {"l40": 1_250.0, "a100": 2_500.0, "h100": 5_000.0}
"""Generated tokens per second of a full batch, as measured for rollouts of a mid-sized model on one such device."""
DEFAULT_DEVICE = "a100"
MAX_TOKENS_PER_SECOND = 1e6
HOME_PREFIX = "aurora-engine-"
"""Of the temporary HOME of an engine's process."""


def check_engine(name: str) -> None:
    """Raises UsageError for an engine that there is not."""
    if name.partition(":")[0] == SIMULATED:
        rate_of(name)
    elif name not in ENGINES:
        raise UsageError(f"there is no engine called {name!r}", hint=f"engines are: {', '.join(ENGINES)}")


def rate_of(engine: str) -> float:
    """Tokens per second of an engine name: "simulated", "simulated:h100" or "simulated:<tokens per second>".

    Raises UsageError for anything else.
    """
    name, _, device = engine.partition(":")
    if name == SIMULATED:
        device = device or DEFAULT_DEVICE
        if device in DEVICES:
            return DEVICES[device]
        rate = float(device) if device.replace(".", "", 1).isdecimal() else 0.0
        if 0 < rate <= MAX_TOKENS_PER_SECOND:
            return rate
    choices = ", ".join(DEVICES)
    raise UsageError(f"there is no engine called {engine!r}", hint=f"simulated:<{choices} or tokens per second>")
