"""`python -m benchmarks`: every benchmark, one after the other."""

from __future__ import annotations

from benchmarks import evidence

if __name__ == "__main__":
    evidence.main()
