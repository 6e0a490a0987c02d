"""Build the site: python docs/site/build.py [--out build/site]

Writes the sources (`pages.py`) beside the site, runs Sphinx with warnings as errors, and checks
that no link is broken and nothing is loaded from outside. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import links
import pages
from sphinx.cmd.build import main as sphinx


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=pages.ROOT / "build" / "site")
    out = parser.parse_args().out.resolve()
    started = time.monotonic()
    sources = out.with_name(out.name + "-sources")
    count = pages.write_sources(sources)
    written = time.monotonic() - started
    trees = out.with_name(out.name + "-trees")
    command = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(pages.HERE), "-d", str(trees)]
    if status := sphinx([*command, str(sources), str(out)]):
        return status
    if broken := links.complaints(out):
        print(*broken, sep="\n", file=sys.stderr)
        return 1
    total = time.monotonic() - started
    parts = f"{written:.0f} s of them for notebooks, tables and docstrings"
    print(f"{count} pages in {total:.0f} s ({parts})")
    print(f"{out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
