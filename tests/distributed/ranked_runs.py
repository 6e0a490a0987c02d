"""Runs in several processes on one machine, by gloo: for the tests of ranks.

A job is a function of this folder by name, called in every process with its arguments; what each
returns comes back in the order of ranks. Processes are started once for a number of ranks and take
one job after another, since starting them takes longer than most jobs.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

LONGEST = 120.0
"""Seconds of a job."""


class Failed(Exception):
    """What a rank raised, in words."""


class RankedProcesses:
    """`count` processes with one process group."""

    def __init__(self, count: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self.ends, self.processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, port, there), daemon=True)
            process.start()
            there.close()
            self.ends.append(here)
            self.processes.append(process)

    def run(self, job: str, *arguments: Any) -> list[Any]:
        """What `job`, "module:function", returns in each rank."""
        for end in self.ends:
            end.send((job, arguments))
        found = []
        for rank, end in enumerate(self.ends):
            if not end.poll(LONGEST):
                raise Failed(f"rank {rank} did not answer")
            good, value = end.recv()
            found.append(value)
            if not good:
                raise Failed(f"rank {rank}: {value}")
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(rank: int, count: int, port: int, end: Connection) -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=LONGEST),
    )
    while True:
        job, arguments = end.recv()
        module, _, name = job.partition(":")
        try:
            end.send((True, getattr(importlib.import_module(module), name)(*arguments)))
        except Exception as error:
            end.send((False, "".join(traceback.format_exception(error))))
