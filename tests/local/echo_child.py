"""A child process for test_channel.py: says what it inherited, then echoes until the socket closes."""

import os
import signal

from aurora_p2p.local.child import inherited_channel
from aurora_p2p.wire.trainer import Body, Failed

if __name__ == "__main__":
    channel = inherited_channel(Body | Failed)
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    channel.send(Failed(",".join(sorted(os.environ)), f"nice {os.nice(0)} sigint-ignored {ignored}"))
    try:
        while True:
            message, payload = channel.receive()
            channel.send(message, payload)
    except EOFError:
        print("the parent is gone", flush=True)
