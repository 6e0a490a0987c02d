"""Run folders: safetensors and JSON, no pickle, nothing half written, nothing taken on trust.

Every file is written beside its place and moved into it, so that a full disk or a killed process
leaves the last good version. One process at a time writes into a folder (`locked`). A checkpoint
holds a digest of all that is in it, of the history up to its epoch, and the run that it is of
(`run_id`); what does not agree is refused. A run folder holds

    config.json              settings, data, network (a name and arguments, or FILE.py:factory)
    metrics.jsonl            one line an epoch
    checkpoint.safetensors   all tensors of the run; epoch and scalars in its metadata
    augmentation.json        the learned ranges with units
    result.json, samples.npz, report.html     when the run has ended

Every record begins with the same entries (`record_head`): what was asked, and what the result was
made with.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy
import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from isotropy._version import __version__
from isotropy.checks import CallerError
from isotropy.kernels.ranks import ranks

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
AUGMENTATION = "augmentation.json"
RESULT = "result.json"
REPORT = "report.html"
LOCK = ".lock"
IDENTITY = (
    "kind", "objective", "schedule", "network", "generators", "data", "padding", "fill",
)  # fmt: skip
"""Entries of a config that say which run it is."""

LARGEST = 2**63
"""Numbers of a file are below it, as torch's own are."""
Type = tuple[Any, float | None]
"""Of an entry, what `isinstance` takes, and the least number that it, or each of a list, may be."""
TYPES: dict[str, dict[str, Type]] = {
    CONFIG: {
        "kind": (str, None), "objective": (str, None), "command": (str, None),
        "schedule": (dict, None), "schedule.epochs": (int, 1), "schedule.seed": (int, 0),
        "network": (dict, None), "network.name": (str, None), "network.kind": (str, None),
        "network.arguments": (dict, None), "generators": (list, None), "actions": (list, None),
        "notes": (list, None), "request": (dict, None), "truth": (dict, None),
        "padding": (str, None), "fill": (list | int | float, None),
        "data": (dict, None), "data.name": (str, None), "data.fingerprint": (str, None),
        "data.shape": (list, 1), "data.outputs": (int, 1), "data.classes": (list, None),
        "data.columns": (list, None), "data.scaling": (dict, None),
    },
    RESULT: {
        "command": (str, None), "seed": (int, 0), "seconds": (int | float, 0),
        "isotropy": (str, None), "versions": (dict, None), "symmetries": (list, None),
        "run_folder": (str, None),
    },
    AUGMENTATION: {"symmetries": (list, None)},
    "certificate.json": {
        "kind": (str, None), "network": (dict, None), "shape": (list, 1), "outputs": (int, 1),
        "start": (dict, None), "subspace": (dict, None), "grid": (dict, None),
        "entry": (dict, None), "prior": (dict, None), "message": (str, None),
        "data": (dict, None), "errors": (int, 0), "n": (int, 1), "bits": (dict, None),
        "bound": (int | float, 0), "delta": (int | float, 0), "digest": (str, None),
    },
    ".jsonl": {
        "row": (str, None), "seed": (int, 0), "epoch": (int, 1), "seconds": (int | float, 0),
        "train_loss": (int | float, -math.inf), "ranges": (dict, None),
    },
}  # fmt: skip
"""By name, or ending, of a file: the entries that readers rely on."""


def make_folder(path: Path) -> Path:
    """Create a run folder and make sure that it can be written to; of several ranks, the first."""
    if not ranks().is_first:
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CallerError(
            f"run folder {str(path)!r} cannot be written: {error.strerror or error}; choose "
            "another with --out"
        ) from error
    return path


def check_unused(path: Path, *, can_go_on: bool = True) -> None:
    """Raise if `path` already holds a run, which a new one would overwrite.

    can_go_on: whether runs of this kind can be continued
    """
    if ranks().by_first(lambda: any((path / name).exists() for name in (CHECKPOINT, RESULT))):
        way = "continue it with --resume (resume=True in Python) or " if can_go_on else ""
        raise CallerError(
            f"run folder {str(path)!r} already holds a run; {way}choose another folder"
        )


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from running in a folder. The system frees what a dead process held.

    Raises CallerError if another one is at work there. Folders that were made for the lock and
    stayed empty are removed. Of several ranks the first holds the lock for all.
    """
    if not ranks().is_first:
        yield
        return
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    lock = make_folder(folder) / LOCK
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            _try_lock(descriptor)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                break  # else its last holder removed it in between
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            raise CallerError(
                f"run folder {str(folder)!r} is in use by another process; wait until it has "
                "ended or choose another folder"
            ) from error
        os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
            for each in made:
                each.rmdir()
        os.close(descriptor)


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def alone_in_folder(workflow: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Have a function hold the lock of the folder that its keyword argument `folder` names."""

    @functools.wraps(workflow)
    def alone(*arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
        folder = named.get("folder")
        if not isinstance(folder, str | Path):
            return workflow(*arguments, **named)
        with locked(Path(folder)):
            return workflow(*arguments, **named)

    return alone


def unwritable(path: Path, error: OSError) -> CallerError:
    """The sentence for a file that the file system does not let us write."""
    return CallerError(
        f"{str(path)!r} cannot be written: {error.strerror or error}; what was there before is kept"
    )


TURNS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that turn the direction of what follows, and may make one name look like another."""


def as_bytes(text: str) -> bytes:
    """A page in UTF-8: what turns its direction, and names that are not UTF-8, are escaped."""
    shown = TURNS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return shown.encode(errors="backslashreplace")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: beside its place first, then moved into it.

    The file beside has a name that nobody can foresee, and is no link. Of several ranks the first
    writes.
    """
    if not ranks().is_first:
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except BaseException as error:  # an interruption, too, leaves nothing half written
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def _sync_folder(folder: Path) -> None:
    """Have the file system keep the names of a folder, where it can be asked to."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: non-finite numbers become null, paths and tuples plain."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON object, indented, whole or not at all."""
    write_bytes(path, (json.dumps(plain(record), indent=2, allow_nan=False) + "\n").encode())


class Entries(dict[str, Any]):
    """A JSON object of a file; an entry that is missing is asked for with a sentence."""

    where = ""

    def __missing__(self, key: str) -> Any:
        raise CallerError(f"{self.where}: expected an entry {key!r}, found none; restore the file")


def _parsed(text: str, path: Path) -> Any:
    """What JSON says, with `Entries` for its objects."""

    def entries(found: dict[str, Any]) -> Entries:
        made = Entries(found)
        made.where = repr(str(path))
        return made

    return json.loads(text, object_hook=entries)


def check_types(record: Mapping[str, Any], types: Mapping[str, Type], *, where: str) -> None:
    """Raise CallerError unless every entry of `types` that is there is of its type and range.

    types: by name, `data.shape` for an entry within one; what is None is not checked
    """
    for name, (kind, least) in types.items():
        value: Any = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            continue
        good = isinstance(value, kind) and isinstance(value, bool) <= (kind is bool)
        numbers = value if isinstance(value, list) else [value]
        if least is not None and good:
            good = all(isinstance(n, int | float) and least <= n < LARGEST for n in numbers)
        if not good:
            words = kind.__name__ if isinstance(kind, type) else str(kind)
            wanted = words + (f" of at least {least}" if least is not None else "")
            raise CallerError(
                f"{where}: expected {name!r} to be {wanted}, got {str(value)[:60]!r}; restore the "
                "file"
            )
    if record.get("schema", 1) != 1:
        raise CallerError(
            f"{where}: expected schema 1, got {record['schema']!r}; it was written by another "
            "version of isotropy"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a sentence if it is missing, broken, or has entries of other types."""
    try:
        record = _parsed(path.read_text(encoding="utf-8"), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CallerError(
            f"{str(path.parent)!r} is not a run folder: it has no {path.name}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CallerError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise CallerError(f"{str(path)!r}: expected a JSON object, got {type(record).__name__}")
    if path.name in TYPES:
        check_types(record, TYPES[path.name], where=repr(str(path)))
    return record


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, whole or not at all."""
    lines = [json.dumps(plain(row), allow_nan=False) + "\n" for row in rows]
    write_bytes(path, "".join(lines).encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line; a missing file has none, a broken one gets a sentence.

    Half a line at the end, which a full disk leaves, is dropped with a warning.
    """
    if not path.exists():
        return []
    try:
        *lines, last = path.read_text(encoding="utf-8").split("\n")
        rows = [_parsed(line, path) for line in lines if line]
        with contextlib.suppress(json.JSONDecodeError):
            rows += [_parsed(last, path)] if last else []
            last = ""
        if last:
            warnings.warn(f"{str(path)!r}: its last line is torn and was dropped", stacklevel=2)
    except (OSError, ValueError, RecursionError) as error:
        raise CallerError(f"{str(path)!r} cannot be read: {error}") from error
    for number, row in enumerate(rows, 1):
        where = f"{str(path)!r}, line {number}"
        if not isinstance(row, dict):
            raise CallerError(f"{where}: expected one JSON object a line")
        check_types(row, TYPES.get(path.suffix, {}), where=where)
    return rows


def save_tensors(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Tensors and a JSON record in one safetensors file, whole or not at all."""
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(plain(record))
    write_bytes(path, save(flat, metadata={"record": text, "digest": _digest(flat, text)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote; raises CallerError unless it is that to the last bit."""
    try:
        content = path.read_bytes()  # by its name, safetensors reads names in UTF-8 alone
        tensors = load(content)
        head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = head.get("__metadata__", {})
        text, digest = metadata["record"], metadata["digest"]
        record: dict[str, Any] = json.loads(text)
    except FileNotFoundError as error:
        raise CallerError(f"{str(path.parent)!r} holds no checkpoint ({path.name})") from error
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise CallerError(f"checkpoint {str(path)!r} cannot be read: {error}") from error
    if _digest(tensors, text) != digest:
        raise CallerError(
            f"checkpoint {str(path)!r} is damaged: its tensors or its record are not those that "
            "were saved; restore it or start anew"
        )
    return tensors, record


def _digest(tensors: Mapping[str, Tensor], record: str) -> str:
    """SHA-256 of names, types, shapes and bytes of tensors, and of a text."""
    found = hashlib.sha256(record.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def run_id(config: Mapping[str, Any]) -> str:
    """What a run is of: a digest of data, network and settings."""
    parts = {name: config.get(name) for name in IDENTITY}
    return _text_digest(parts)


def _text_digest(value: Any) -> str:
    text = json.dumps(plain(value), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_run(path: Path, record: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise CallerError unless the record of a checkpoint is of the run with this config."""
    if record.get("run") != run_id(config):
        raise CallerError(
            f"checkpoint {str(path)!r} is not of the run that the {CONFIG} beside it describes; "
            "restore both or start anew"
        )


# -- a trainer's state ---------------------------------------------------------------------


class Resumable(Protocol):
    """A trainer that can be saved between two epochs.

    optimisers: by name, with `state_dict` and `load_state_dict` as torch's have them
    """

    device: torch.device
    inputs: Tensor
    targets: Tensor
    config: Any
    optimisers: Any
    epoch: int
    seconds: float

    def run_epoch(self, test: tuple[Tensor, Tensor] | None = None) -> Any: ...

    def modules(self) -> dict[str, nn.Module]:
        """By name, all whose tensors change."""

    def own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What else the next epoch depends on: tensors by name, and JSON."""

    def load_own_state(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Take over what `own_state` gave; modules and optimisers are loaded by then."""


def save_trainer(
    folder: Path, trainer: Resumable, history: list[dict[str, Any]], config: Mapping[str, Any]
) -> None:
    """Everything that the run of this config needs to go on as if it had not stopped."""
    tensors: dict[str, Tensor] = {}
    for name, module in trainer.modules().items():
        state = {k: value for k, value in module.state_dict().items() if isinstance(value, Tensor)}
        tensors.update({f"{name}/{key}": value for key, value in state.items()})
    for name, optimiser in trainer.optimisers.items():
        for index, moments in optimiser.state_dict()["state"].items():
            tensors.update(
                {f"optimiser/{name}/{index}/{key}": value for key, value in moments.items()}
            )
    # A network with dropout draws from torch's global generator.
    tensors["generator/cpu"] = torch.get_rng_state()
    if trainer.device.type == "cuda":
        tensors["generator/cuda"] = torch.cuda.get_rng_state(trainer.device)
    own, record = trainer.own_state()
    record = {
        "run": run_id(config),
        "history": _text_digest(history[: trainer.epoch]),
        "epoch": trainer.epoch,
        "seconds": trainer.seconds,
        **record,
    }
    write_lines(folder / METRICS, history)
    save_tensors(folder / CHECKPOINT, {**tensors, **own}, record)


def load_trainer(
    folder: Path, trainer: Resumable, config: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Bring `trainer` to the saved state; returns the history up to there.

    Raises CallerError if the checkpoint is damaged, of another run, or lacks its history.
    """
    tensors, record = load_tensors(folder / CHECKPOINT)
    if "generator/cpu" not in tensors or not {"epoch", "seconds"} <= record.keys():
        raise CallerError(f"{str(folder / CHECKPOINT)!r} is not the checkpoint of a run")
    check_run(folder / CHECKPOINT, record, config)
    for name, module in trainer.modules().items():
        load_module(folder, module, tensors, name)
    for name, optimiser in trainer.optimisers.items():
        state: dict[int, dict[str, Tensor]] = {}
        prefix = f"optimiser/{name}/"
        for key, value in tensors.items():
            if key.startswith(prefix):
                index, moment = key.removeprefix(prefix).split("/")
                state.setdefault(int(index), {})[moment] = value
        optimiser.load_state_dict(
            {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
        )
    torch.set_rng_state(tensors["generator/cpu"])
    if trainer.device.type == "cuda" and "generator/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["generator/cuda"], trainer.device)
    trainer.epoch, trainer.seconds = int(record["epoch"]), float(record["seconds"])
    trainer.load_own_state(tensors, record)
    # The history is written first, so that a run stopped between the two has a row too many.
    history = read_lines(folder / METRICS)[: trainer.epoch]
    if _text_digest(history) != record.get("history"):
        raise CallerError(
            f"{str(folder / METRICS)!r}: expected the lines of the {trainer.epoch} epochs of the "
            f"checkpoint, got {len(history)} or others; restore the file or start anew"
        )
    return history


def load_module(folder: Path, module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Load the tensors saved under `name/` into a module of the same shapes.

    State of a module's own that is no tensor is not saved, and stays as it is.
    """
    prefix = f"{name}/"
    state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    whole = module.state_dict()
    wanted = {key: value for key, value in whole.items() if isinstance(value, Tensor)}
    for key in sorted(set(wanted) | set(state)):
        here = tuple(wanted[key].shape) if key in wanted else "nothing"
        there = tuple(state[key].shape) if key in state else "nothing"
        if here != there:
            raise CallerError(
                f"run folder {str(folder)!r} is of another model: it holds {there} for {key!r}, "
                f"this model has {here}"
            )
    module.load_state_dict({**whole, **state})


def record_head(
    command: str,
    *,
    seed: int,
    device: torch.device,
    seconds: float,
    run_folder: str | Path | None = None,
) -> dict[str, Any]:
    """The first entries of a command's record, in their order; `seconds` are those of its work."""
    return {
        "schema": 1,
        "command": command,
        "seed": seed,
        **provenance(device),
        "seconds": seconds,
        "run_folder": None if run_folder is None else str(run_folder),
    }


def provenance(device: torch.device) -> dict[str, Any]:
    """Version of the library, of what it runs on, the commit (null when installed) and device."""
    return {
        "isotropy": __version__,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "commit": commit(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The git commit of the checkout this runs from; None for an installed package.

    It ends with "-dirty" where tracked files have changed since, other than results, which a run of
    many rows writes itself. A repository that merely surrounds the package, such as that of a
    virtual environment, is not asked. git runs without the configuration of user and system.
    """
    here = Path(__file__).resolve().parent
    root, git = here.parents[1], shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    asked = [git, "-C", str(root), "-c", "core.fsmonitor=false", "-c", f"safe.directory={root}"]
    alone = {"PATH": os.defpath, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}

    def said(*words: str) -> str:
        return subprocess.run(
            [*asked, *words], capture_output=True, text=True, timeout=10, check=True, env=alone
        ).stdout.strip()

    try:
        said("ls-files", "--error-unmatch", "--", str(here.relative_to(root) / "records.py"))
        name = said("describe", "--always", "--abbrev=12")
        changed = said("diff", "--no-ext-diff", "--name-only", "HEAD", "--", ".", ":!results")
        return f"{name}-dirty" if changed else name
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
