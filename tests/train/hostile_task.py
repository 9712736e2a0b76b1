"""A scorer whose behaviour the completion chooses: what a bug in a grader, or a crafted sample, may do to it."""

import os
import socket

HANG, EXIT, RAISE, NOT_A_NUMBER, HOARD, DIAL, SPIN = range(7)


class HostileTask:
    path = "hostile_task:HOSTILE"
    max_tokens = 4
    vocabulary = 264
    stop_tokens = (258,)

    def score(self, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> float:
        match tokens[0]:
            case 0:
                os.read(os.pipe()[0], 1)
            case 1:
                os._exit(3)
            case 2:
                raise ValueError("not an answer")
            case 3:
                return float("nan")
            case 4:
                return float(len(bytearray(1 << 40)))
            case 5:
                with socket.create_connection(("127.0.0.1", tokens[1]), timeout=1):
                    return 1.0
            case 6:
                while True:
                    pass
        return float(tokens[0])


HOSTILE = HostileTask()


class CarelessTask(HostileTask):
    """What no task should do: it evaluates the answer, as text."""

    path = "hostile_task:CARELESS"

    def score(self, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> float:
        return float(eval(bytes(tokens)))  # noqa: S307


CARELESS = CarelessTask()
