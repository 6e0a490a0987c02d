"""Bytes and folders from disk; whatever the file system refuses becomes a sentence with the path.

A gzip file is recognised by its first two bytes, never by its name.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from isotropy.checks import CallerError

GZIP_START = b"\x1f\x8b"


def existing_path(source: str | Path) -> Path:
    """`source` as a path with `~` written out; raises `CallerError` unless a file or folder."""
    if not str(source):
        raise CallerError("expected the path of a file or folder, got an empty path; name one")
    try:
        path = Path(source).expanduser()
        if path.is_file() or path.is_dir():
            return path
        found = path.exists()
    except PermissionError as error:
        raise refused(Path(source), error) from None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, no home folder
        found = False
    if found:
        raise CallerError(
            f"{source}: expected a file or a folder, got a device, pipe or socket; "
            "copy the data to a file first"
        )
    raise CallerError(f"{source}: expected a file or folder, found nothing; check the path")


def entries(folder: Path) -> list[Path]:
    """What lies in `folder`, sorted by name, without hidden entries and `__MACOSX`."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise refused(folder, error) from None
    return [entry for entry in found if not entry.name.startswith((".", "__MACOSX"))]


def read_start(path: Path, count: int) -> bytes:
    """The first `count` bytes; raises `CallerError` for an empty file."""
    try:
        with path.open("rb") as file:
            start = file.read(count)
    except OSError as error:
        raise refused(path, error) from None
    if not start:
        raise CallerError(f"{path}: expected data, got an empty file; download or copy it again")
    return start


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, decompressed if it is gzip; raises `CallerError` where that fails."""
    read_start(path, 1)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise refused(path, error) from None
    if not raw.startswith(GZIP_START):
        return raw
    try:
        return gzip.decompress(raw)
    except EOFError:
        raise CallerError(
            f"{path}: expected a whole gzip file, got one that ends early (truncated after "
            f"{len(raw)} bytes); download or copy it again"
        ) from None
    except (OSError, zlib.error) as error:
        raise CallerError(
            f"{path}: expected a gzip file, got a damaged one ({error}); download or copy it again"
        ) from None


def refused(path: Path, error: OSError) -> CallerError:
    """The sentence for a file or folder that the file system does not let us read."""
    if isinstance(error, PermissionError):
        return CallerError(
            f"{path}: permission denied; make it readable for this user, or name another path"
        )
    return CallerError(
        f"{path}: expected to read it, got {error.strerror or error}; check it or name another path"
    )
