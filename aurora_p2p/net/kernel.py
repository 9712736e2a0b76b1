"""What the kernel knows of a TCP connection, and how little of our bytes it shall hold. Linux; elsewhere nothing."""

from __future__ import annotations

import socket
import sys

_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_RTT, _MIN_RTT = 68, 148
"""Offsets of tcpi_rtt and tcpi_min_rtt in struct tcp_info (linux/tcp.h): u32, microseconds."""
_LENGTH = 152
_NEVER_MEASURED = 2**32 - 1


def rtt_microseconds(sock: socket.socket) -> int:
    """The shortest round trip of the last minutes (tcp_min_rtt_wlen), or the smoothed one; 0 when nobody knows."""
    if sys.platform != "linux":
        return 0
    try:
        known = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LENGTH)
    except OSError:
        return 0
    shortest = int.from_bytes(known[_MIN_RTT : _MIN_RTT + 4], sys.byteorder)
    if len(known) == _LENGTH and 0 < shortest < _NEVER_MEASURED:
        return shortest
    return int.from_bytes(known[_RTT : _RTT + 4], sys.byteorder)
