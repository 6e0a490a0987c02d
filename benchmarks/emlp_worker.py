"""One basis by `emlp`, in an interpreter that has it; knows nothing of this library.

    PYTHON emlp_worker.py GROUP P Q REPEATED

GROUP is an expression of `emlp.groups`, such as `SO(3)`. Says `ready` when everything is imported,
then a JSON object with rank and seconds, in one line, as soon as each solve has ended. The first
also traces and compiles, which is not to be held against the tool, so that there is a second unless
the first took longer than `ONCE`; more, `MOST` at most, as long as those after the first took less
than REPEATED seconds together. Each starts with nothing solved.
"""

from __future__ import annotations

import json
import logging
import sys
import time

MOST = 10
ONCE = 60.0


def main() -> None:
    name, p, q, repeated = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    logging.disable(logging.CRITICAL)
    import emlp.groups
    import jax
    import numpy as np
    from emlp.reps import Rep, T

    jax.numpy.zeros(3).sum().block_until_ready()
    print("ready", flush=True)
    versions = {"emlp": _version("emlp"), "jax": jax.__version__}
    seconds: list[float] = []
    while is_wanted(seconds, repeated):
        group = eval(name, vars(emlp.groups))
        Rep.solcache.clear()
        started = time.perf_counter()
        representation = T(p, q)(group)
        basis = np.asarray(representation.equivariant_basis())
        seconds.append(time.perf_counter() - started)
        found = {"rank": int(basis.shape[1]), "seconds": seconds[-1], "dtype": str(basis.dtype)}
        print(json.dumps({**found, "versions": versions}), flush=True)


def is_wanted(seconds: list[float], repeated: float) -> bool:
    """Whether to solve again, after solves that took so long."""
    if len(seconds) < 2:
        return not seconds or seconds[0] <= ONCE
    return sum(seconds[1:]) < repeated and len(seconds) < MOST


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


if __name__ == "__main__":
    main()
