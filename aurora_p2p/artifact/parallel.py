"""Work on several threads, results in order. For kernels and file reads, which release the GIL."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 2
"""Items per thread that are begun before the first is taken: one in work, one ready. It bounds the memory."""


def processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[tuple[Item, Result]]:
    """Each item with what `work` made of it, in order. What `work` raises is raised at its turn; nothing runs after."""
    if threads <= 1:
        for item in items:
            yield item, work(item)
        return
    pool, begun = ThreadPoolExecutor(threads), deque[tuple[Item, "Future[Result]"]]()
    try:
        for item in items:
            begun.append((item, pool.submit(work, item)))
            if len(begun) > AHEAD * threads:
                first, future = begun.popleft()
                yield first, future.result()
        while begun:
            first, future = begun.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
