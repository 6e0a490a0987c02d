"""Malformed calls: `python tests/trust/fuzz.py --minutes 10`, or `make fuzz ARGS="--minutes 10"`.

A case is drawn by its seed: options, files of every reader, words for groups and representations,
damaged run folders, and interruptions. It fails unless it ends with status 0, 1, 2 or 130 within
60 s and 6 GB, says one sentence where it fails, none of them a mistake of ours, and shows no
traceback; and a status of 0 needs finite results. What failed is told with its seed; `--case SEED`
runs one case again and shows it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from children import STATUSES, Ended, Signal, bars, keep_report, run
from PIL import Image

from isotropy.cli.main import cli

Random = random.Random
Case = tuple[list[str], Signal | None]
"""What is typed, and what is sent."""

# -- what is whole ---------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def saved(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def data_files() -> dict[str, dict[str, bytes]]:
    """By what is named: small files of every reader."""
    images, labels = bars()
    table = "a,b,c\n" + "".join(f"{i},{i % 7},{'yes' if i % 2 else 'no'}\n" for i in range(30))
    picture = io.BytesIO()
    Image.fromarray(images[0]).save(picture, "png")
    x = images.reshape(30, -1)[:, :4].astype(np.float32)
    cifar = b"".join(bytes([i % 10]) + bytes([i]) * 3072 for i in range(20))
    return {
        "bars.npz": {"bars.npz": saved(np.savez_compressed, x=images, y=labels)},
        "plain.npz": {"plain.npz": saved(np.savez, x=images, y=labels)},
        "x.npy": {"x.npy": saved(np.save, images), "y.npy": saved(np.save, labels)},
        "mnist": {
            "mnist/train-images-idx3-ubyte": idx(images),
            "mnist/train-labels-idx1-ubyte": idx(labels),
        },
        "packed": {
            "packed/train-images-idx3-ubyte.gz": gzip.compress(idx(images)),
            "packed/train-labels-idx1-ubyte.gz": gzip.compress(idx(labels)),
        },
        "cifar": {"cifar/data_batch_1.bin": cifar},
        "table.csv": {"table.csv": table.encode()},
        "table.csv.gz": {"table.csv.gz": gzip.compress(table.encode())},
        "pictures": {
            f"pictures/{name}/{i}.png": picture.getvalue() for name in "ab" for i in range(3)
        },
        "pairs.npz": {"pairs.npz": saved(np.savez, x=x, entity=np.arange(30) // 2)},
    }


FAST = ["--model", "mlp:3", "--generators", "rotation", "--device", "cpu", "--json", "--quiet"]
LEARN = ["learn", "--data", "bars.npz", *FAST, "--out", "run"]
RUNS: dict[str, list[str]] = {
    "learned": [*LEARN[:-1], "learned", "--epochs", "2", "--verdicts", "0", "--no-search"],
    "relaxed": ["relax", "--data", "bars.npz", "--out", "relaxed", "--json", "--quiet"],
    "represented": ["represent", "--data", "pairs.npz", "--out", "represented", "--json"],
    "certified": ["certify", "--model", "mlp:2", "--out", "certified", "--quiet"],
    "controlled": ["control", "--steps", "40", "--start", "20", "--width", "8", "--batch-size", "8",
                   "--episodes", "1", "--evaluate-every", "20", "--device", "cpu", "--quiet",
                   "--out", "controlled"],
}  # fmt: skip
"""Run folders that are made once, and damaged."""


def make_template(folder: Path) -> list[str]:
    """All whole files in one folder; the run folders that could be made."""
    for files in data_files().values():
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    made = []
    for name, words in RUNS.items():
        ended = run(words, folder)
        if ended.status == 0 and (folder / name).is_dir():
            made.append(name)
        else:
            print(f"no folder {name!r} to damage: {ended.last_line}", flush=True)
    return made


# -- damage ----------------------------------------------------------------------------------


def damaged(content: bytes, draw: Random) -> bytes:
    """Bytes flipped, cut, doubled, zeroed or put in."""
    found = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        if not found:
            return bytes(draw.randbytes(5))
        place = draw.randrange(len(found))
        end = min(len(found), place + draw.choice([1, 4, 50]))
        how = draw.choice([0, 0, 0, 1, 2, 3, 4, 5])
        if how == 0:
            found[place] ^= 1 << draw.randrange(8)
        elif how == 1:
            del found[place:]
        elif how == 2:
            del found[place:end]
        elif how == 3:
            found[place:end] = bytes(end - place)
        elif how == 4:
            found[place:place] = found[place:end]
        else:
            found[place:end] = draw.randbytes(end - place)
    return bytes(found)


ODD = [None, "", "x", -1, 0, 1e400, -1e300, float("nan"), True, [], {}, [1, 2], "\u202e", 2**70]


def damaged_json(text: str, draw: Random) -> str:
    """One entry, at any depth, replaced or taken away."""
    record = json.loads(text)
    place = record
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return json.dumps(record)
        key = draw.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.6:
            place = inner
            continue
        if draw.random() < 0.3:
            del place[key]
        else:
            place[key] = draw.choice(ODD)
        return json.dumps(record)


# -- cases -----------------------------------------------------------------------------------

WORDS = ["", "x", "0", "-1", "1", "2", "nan", "inf", "1e308", "9" * 30, "a=b", "rotation=1",
         "rotation", "rotation=nan", "bars.npz", "gone", "/", "/dev/null", "x" * 300, "\u202e",
         "a\udcffb", "mlp:4", "mlp:999999999", "cnn", "compact", "horizontal_flip", ".", "..",
         "prior_rate=1e30", "weight_rate=-1", "batch_size=1", "samples=0", "ranges={}", "--", "%s",
         "timm:x", "nets.py:f", "C(4)", "SO(2)", "label", "1:2", "[]", "scale,scale"]  # fmt: skip
COMMANDS = {
    "learn": LEARN[1:],
    "profile": ["--data", "bars.npz", *FAST, "--out", "run", "--amounts", "0,1,2"],
    "measure": ["--data", "bars.npz", "--model", "mlp:3", "--json", "--quiet", "--out", "run"],
    "relax": ["--data", "bars.npz", "--json", "--quiet", "--out", "run"],
    "build": ["--model", "mlp:3", "--data", "bars.npz", "--json", "--quiet", "--out", "run"],
    "represent": ["--data", "pairs.npz", "--json", "--out", "run"],
    "certify": ["--model", "mlp:2", "--out", "run", "--quiet"],
    "basis": ["--group", "SO(3)", "--rep", "V", "--json", "--out", "run"],
    "reproduce": ["transitions", "--quick", "--limit", "0", "--json"],
    "control": ["--env", "Walker2d-v5", "--steps", "40", "--start", "20", "--width", "8",
                "--batch-size", "8", "--episodes", "1", "--evaluate-every", "20", "--device", "cpu",
                "--json", "--quiet", "--out", "run"],
    "verify": ["certified/certificate.json"],
}  # fmt: skip
LONG = {"epochs", "steps", "verdicts", "curvature_batch", "batch_size", "episodes"}
"""Options whose large values only ask for a long run."""


def option_case(draw: Random, folder: Path) -> Case:
    command = draw.choice(list(COMMANDS))
    options = [
        each
        for each in cli.commands[command].params
        if isinstance(each, click.Option) and each.name != "traceback"
    ]
    words = [command, *COMMANDS[command]]
    for option in draw.sample(options, min(len(options), draw.choice([1, 1, 2, 3]))):
        words.append(draw.choice(option.opts))
        if option.is_flag:
            continue
        if isinstance(option.type, click.Choice) and draw.random() < 0.7:
            words.append(str(draw.choice(list(option.type.choices))))
        elif option.name in LONG:
            words.append(draw.choice(["-1", "0", "1", "2", "3", "x", "9" * 30]))
        else:
            words.append(draw.choice(WORDS))
    return words, None


def file_case(draw: Random, folder: Path) -> Case:
    named = draw.choice(list(data_files()))
    files = data_files()[named]
    chosen = draw.choice(list(files))
    (folder / chosen).write_bytes(damaged(files[chosen], draw))
    if named == "pairs.npz":
        return ["represent", "--data", named, "--json", "--out", "run"], None
    generators = ["--generators", "scale"] if "table" in named else []
    few = ["--subset", "4"] if named in ("cifar", "pictures") else []
    return ["learn", "--data", named, *FAST, *generators, *few, "--out", "run"], None


TOKENS = ["V", "V'", "T(2)", "T(1,1)", "Scalar", "P", "irrep(2)", "0", "1", "3", "999999999", "+",
          "*", ">>", "(", ")", "^2", "^64", "@1", "'", " ", "V^3", "64V"]  # fmt: skip
FACTORS = ["V", "V'", "T(2)", "Scalar", "2V", "V^2", "0", "3", "irrep(1)", "P", "V@0", "0V"]
GROUPS = ["SO(3)", "O(2)", "S(4)", "Z(5)", "C(4)", "D(3)", "O(1,3)", "Sp(2)", "SU(2)", "U(1)",
          "SL(2)", "GL(2)", "Scaling(2)", "Cube", "RubiksCube", "Grid(2,3)", "Trivial(2)",
          "S(3) x Z(2)", "Wreath(Z(2),S(3))", "Embedded(SO(2),4,1)", "Real(SU(2))",
          "Semidirect(Z(3),S(3))", "Z(999999999)", "S(5000)", "O(99)", "SO(0)", "x", "Z(-1)",
          "DkeR3(0)", "Wreath(S(9),S(9))", "SO(2", "Grid(4,9999)", "²", "SO(3) x"]  # fmt: skip


def word_case(draw: Random, folder: Path) -> Case:
    group = draw.choice(GROUPS)
    if draw.random() < 0.3:
        group = damaged(group.encode(), draw).decode(errors="replace").replace("\0", "0")
    count = draw.choice([1, 1, 2, 3, 5, 8])
    words = "".join(draw.choice(TOKENS) for _ in range(count))
    if draw.random() < 0.6:
        factors = [draw.choice(FACTORS) for _ in range(min(count, 4))]
        words = "".join(each + draw.choice(["*", " + ", " >> "]) for each in factors)[:-1].strip()
        words = words.rstrip(" >*+")
    rank = ["--rank-only"] if draw.random() < 0.5 else []
    return ["basis", "--group", group, "--rep", words, "--json", "--out", "run", *rank], None


def folder_case(draw: Random, folder: Path) -> Case:
    name = draw.choice([each for each in RUNS if (folder / each).is_dir()])
    files = sorted(each for each in (folder / name).iterdir() if each.is_file())
    path = draw.choice([each for each in files if each.suffix != ".zip"])  # pickles are not opened
    if path.suffix == ".json" and draw.random() < 0.7:
        path.write_text(damaged_json(path.read_text(), draw))
    elif draw.random() < 0.1:
        path.unlink()
    else:
        path.write_bytes(damaged(path.read_bytes(), draw))
    read = [["measure", "--model", name, "--data", "bars.npz", "--json", "--out", "run"]]
    if name == "learned":
        read += [["learn", "--resume", name, "--json"]] * 2
        read += [["build", "--symmetries", name, "--model", "compact", "--out", "run"]]
    elif name == "relaxed":
        read += [["relax", "--resume", name, "--json"]] * 2
    elif name == "represented":
        read += [["represent", "--resume", name, "--json"]] * 2
    elif name == "certified":
        read = [["verify", f"{name}/certificate.json"]]
    elif name == "controlled":
        read = [["control", "--resume", name, "--json"]]
    return draw.choice(read), None


def interrupt_case(draw: Random, folder: Path) -> Case:
    number = draw.choice([signal.SIGINT, signal.SIGTERM])
    command = draw.choice(["learn", "relax", "represent", "profile", "measure", "basis"])
    return [command, *COMMANDS[command]], Signal(number, draw.uniform(0.02, 0.8))


KINDS: dict[str, Callable[[Random, Path], Case]] = {
    "options": option_case,
    "files": file_case,
    "words": word_case,
    "folders": folder_case,
    "interrupts": interrupt_case,
}

# -- judging ---------------------------------------------------------------------------------


def fault(ended: Ended, words: list[str], is_sent: bool) -> str | None:
    """What is wrong with how a case ended."""
    if ended.status not in STATUSES:
        killed = "took too long" if ended.status == -signal.SIGKILL else "ended"
        return f"{killed}: status {ended.status}"
    if "Traceback" in ended.stderr:
        return "a traceback"
    if "isotropy: unexpected" in ended.stderr:
        return "a mistake of ours"
    is_told = ended.last_line.startswith("isotropy: ")
    is_told |= any(word in ended.stdout for word in ("Not valid: ", '"valid": false'))
    if ended.status in (1, 2) and not is_told:
        return "no sentence"
    if ended.status == 130 and not is_sent:
        return "interrupted by nobody"
    if ended.status == 0 and "--json" in words and words[0] in ("learn", "relax"):
        return _not_finite(ended.stdout)
    return None


def _not_finite(text: str) -> str | None:
    record = json.loads(text)
    needs = ["test_log_likelihood"] if record["command"] == "learn" else ["train_loss"]
    if record.get("objective") in ("evidence", "fixed", "none"):
        needs.append("log_evidence")
    missing = [name for name in needs if name in record and record[name] is None]
    return f"accepted without finite {missing[0]}" if missing else None


def run_case(seed: int, template: Path, *, shown: bool = False) -> tuple[str, Ended, str | None]:
    """The kind of a case, how it ended, and what is wrong with that."""
    draw = Random(seed)
    kind = draw.choice(list(KINDS))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "case"
        shutil.copytree(template, folder)
        words, sent = KINDS[kind](draw, folder)
        words = [word.replace("\0", "") for word in words]
        ended = run(words, folder, sent=sent)
        wrong = fault(ended, words, sent is not None)
    if shown or wrong:
        told = shlex.join(words).encode(errors="backslashreplace").decode()
        print(f"seed {seed}, {kind}: {wrong}: isotropy {told}\n    {ended.last_line}", flush=True)
    return kind, ended, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--case", type=int, help="one case, and how it ended")
    parser.add_argument("--json", type=Path, help="a file for the counts")
    given = parser.parse_args()
    started = time.monotonic()
    counts: Counter[tuple[str, int]] = Counter()
    failed: list[int] = []
    slowest, largest = 0.0, 0
    with tempfile.TemporaryDirectory() as scratch:
        template = Path(scratch)
        make_template(template)
        if given.case is not None:
            _, ended, _ = run_case(given.case, template, shown=True)
            print(ended.stdout, ended.stderr)
            return
        until = time.monotonic() + 60 * given.minutes
        for seed in range(given.seed, given.seed + given.cases):
            if time.monotonic() > until:
                break
            kind, ended, wrong = run_case(seed, template)
            counts[kind, ended.status] += 1
            failed += [seed] if wrong else []
            slowest, largest = max(slowest, ended.seconds), max(largest, ended.megabytes)
    for (kind, status), count in sorted(counts.items()):
        print(f"{kind:12} status {status:4}: {count}")
    print(
        f"{sum(counts.values())} cases from seed {given.seed}, {len(failed)} failed, the slowest "
        f"{slowest:.1f} s, the largest {largest} MB"
    )
    numbers = {
        "cases": sum(counts.values()),
        "first_seed": given.seed,
        "failed": failed,
        "endings": {f"{kind}, status {status}": n for (kind, status), n in sorted(counts.items())},
        "slowest_seconds": slowest,
        "largest_megabytes": largest,
        "seconds": time.monotonic() - started,
    }
    keep_report(given.json, "fuzz", numbers)
    if failed:
        print(f"failed: {' '.join(map(str, failed))}; run one again with --case SEED")
        sys.exit(1)


if __name__ == "__main__":
    main()
