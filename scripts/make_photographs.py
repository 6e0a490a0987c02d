"""Write the sets of `isotropy reproduce photographs` into a folder; prints its --data options."""

from __future__ import annotations

import sys
from pathlib import Path

from isotropy.data.problems import write_photographs

SETS = range(1, 6)


def main(folder: Path) -> None:
    for name, upright in (("rotated", False), ("upright", True)):
        for seed in SETS:
            place = folder / f"{name}-{seed}"
            if not place.exists():  # whole, or not there
                write_photographs(place.with_suffix(".part"), 300, seed=seed, upright=upright)
                place.with_suffix(".part").rename(place)
            print(f"--data {name}-{seed}={place}", end=" ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
