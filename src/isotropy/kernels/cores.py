"""How the cores of a CPU share work: each operation by all of them, or whole parts by each.

torch divides every operation among all threads and waits for the last of them. Where other programs
use the cores too, one thread has to wait for its turn, and all others wait for it, operation by
operation: a forward pass by two threads took three times as long as by one
(benchmarks/frozen_backbone.py). Two ways avoid it:

    on_one_core   operations on few numbers, which gain nothing by several threads
    on_each_core  one part of the data a thread, and each operation by one; they meet at the end

Results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

import torch

Part = TypeVar("Part")
Found = TypeVar("Found")


@contextmanager
def on_one_core(condition: bool = True) -> Iterator[None]:
    """One thread for each operation inside, if the condition holds; as many as before after."""
    before = torch.get_num_threads()
    if not condition or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_each_core(make: Callable[[], Callable[[Part], Found]], parts: Sequence[Part]) -> list[Found]:
    """What a function gives for each part, in their order; without gradients.

    make: a function for one thread alone, called once for each thread; functions share nothing
          that they change
    """
    threads = min(torch.get_num_threads(), len(parts))
    with torch.no_grad():
        if threads < 2:
            own = make()
            return [own(part) for part in parts]
        functions: SimpleQueue[Callable[[Part], Found]] = SimpleQueue()
        for _ in range(threads):
            functions.put(make())

    @torch.no_grad()
    def found(part: Part) -> Found:
        own = functions.get()
        try:
            return own(part)
        finally:
            functions.put(own)

    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    with on_one_core():
        try:
            return list(pool.map(found, parts))
        finally:  # an interrupt does not wait for what has not begun
            pool.shutdown(cancel_futures=True)
