"""Commands that `torchrun` starts in several processes.

    torchrun --nproc-per-node=4 -m isotropy learn --data …

torchrun tells each process its number in the environment. The first one speaks; the others print
nothing but what is wrong with them alone. `learn` and `relax` are shared, `measure` and `basis` are
left to the first, and other commands are refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from isotropy.checks import CallerError
from isotropy.kernels.ranks import group

SHARED, OF_THE_FIRST = ("learn", "relax"), ("measure", "basis")
LONGEST_WAIT = timedelta(hours=12)
"""For a rank that is late: the first one may search or judge for long."""
PATIENCE = 5.0
"""Seconds that a rank waits for the first to say what is wrong."""


@contextmanager
def process_group(words: list[str]) -> Iterator[None]:
    """Inside, the process group of torchrun, where it has started this process among others."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count < 2 or distributed.is_initialized() or not {"RANK", "MASTER_ADDR"} <= set(os.environ):
        yield
        return
    rank = int(os.environ["RANK"])
    if rank:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    command = next((word for word in words if not word.startswith("-")), "")
    if command not in (*SHARED, *OF_THE_FIRST):
        raise CallerError(
            f"isotropy {command}: expected one process, got {count}; start it without torchrun "
            f"(several processes can share {', '.join(SHARED)})"
        )
    if command in OF_THE_FIRST:
        if rank:
            raise SystemExit(0)
        yield
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    cards = torch.cuda.device_count()
    if cards:
        torch.cuda.set_device(local % cards)
    enough = cards >= int(os.environ.get("LOCAL_WORLD_SIZE", count))
    backend = "cpu:gloo,cuda:nccl" if enough and distributed.is_nccl_available() else "gloo"
    distributed.init_process_group(backend, timeout=LONGEST_WAIT)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def is_mine_to_say(sentence: str) -> bool:
    """Whether this rank says what went wrong: the first does, and others what it does not say."""
    own = group()
    if not own.are_many:
        return True
    store = distributed.distributed_c10d._get_default_store()
    try:
        store.set(f"isotropy/{own.number}", sentence)
        if own.is_first:
            return True
        store.wait(["isotropy/0"], timedelta(seconds=PATIENCE))
        return bool(store.get("isotropy/0").decode() != sentence)
    except Exception:  # the first rank is gone, and its store with it
        return True


def of_this_rank(sentence: str) -> str:
    """The sentence with `rank 3: ` before it, if this is not the first, which may speak now."""
    if group().is_first:
        return sentence
    sys.stderr = sys.__stderr__
    return f"rank {group().number}: {sentence}"
