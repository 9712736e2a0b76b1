"""Every exception of the library.

    AuroraError                  base; `hint` says what to do next, `exit_status` is what a program ends with
    ├── UsageError          2    the command line or the configuration is wrong
    ├── WireError           65   bytes from outside are not what the protocol says (never our own bug)
    │   └── SignatureError       the bytes are well formed, but not signed by who must have signed them
    ├── TicketError         64   a ticket or swarm id cannot be read
    ├── UnreachableError    69   no bootstrap, host or peer answered
    ├── RefusedError        77   the other side answered with a named refusal
    ├── StaleError          75   a generation, sequence number or HEAD is older than one already seen
    ├── CheckpointError     66   a checkpoint cannot be read, or does not match the manifest
    │   └── DigestMismatch       the weights held are not the weights named
    ├── ShapeError          70   a caller passed arrays that do not belong together (a bug on our side)
    ├── StoreError          74   the disk is read-only, torn or owned by another process
    │   └── DiskFullError        the disk is full: the same can be tried again once there is room
    ├── PortInUseError      73   another program listens there
    └── ChildError          71   a child process died or stopped answering

A peer's fault inside a machine is a value (`Refused(peer, reason)`), not an exception; only our own bugs and the edges
above raise.
"""

from __future__ import annotations


class AuroraError(Exception):
    """Base of all errors meant for a person. str(error) is one line: what failed and why."""

    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """What to type or do next, one line, or empty."""


class UsageError(AuroraError):
    exit_status = 2


class WireError(AuroraError):
    exit_status = 65


class SignatureError(WireError):
    pass


class TicketError(AuroraError):
    exit_status = 64


class UnreachableError(AuroraError):
    exit_status = 69


class RefusedError(AuroraError):
    """The other side refused. `reason` is the stable machine-readable name that it sent.

    retry_seconds above 0: nothing is wrong with the request itself, the same may be tried again after that time.
    """

    exit_status = 77

    def __init__(self, message: str, *, reason: str = "", hint: str = "", retry_seconds: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.reason, self.retry_seconds = reason, retry_seconds


class StaleError(AuroraError):
    exit_status = 75


class CheckpointError(AuroraError):
    exit_status = 66


class DigestMismatch(CheckpointError):
    pass


class ShapeError(AuroraError):
    exit_status = 70


class StoreError(AuroraError):
    exit_status = 74


class DiskFullError(StoreError):
    pass


class PortInUseError(AuroraError):
    exit_status = 73


class ChildError(AuroraError):
    exit_status = 71
