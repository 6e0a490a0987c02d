"""Check a certificate of an MLP with NumPy alone: decode the message, count errors, bound them.

    python scripts/verify_certificate.py certificate.json --data train.npz|FOLDER [--json]

This is a second implementation of what a certificate says, without PyTorch and without this
package, from the definitions alone:

    start      torch's Mersenne Twister by the seed; `nn.Linear` draws weights and biases uniformly
               within ±1/√(number of inputs)
    subspace   signs by SplitMix64 with a counter (`src/isotropy/bounds/subspace.py`)
    levels     a range coder over the discretised prior (`src/isotropy/bounds/coding.py`)
    network    flatten, linear, tanh, linear; the weights in float32, the outputs in float64. An
               example counts as an error unless its class has strictly the largest output
    bound      kl(errors/n ‖ R) ≤ (bits ln 2 + ln 1/δ)/n, solved for R

It prints what `isotropy verify` prints, and exits with 0 if all of it agrees with the file, with 1
if something does not, and with 2 if it cannot check this certificate: another network than `mlp`,
a start that was trained before, or an average over copies. DATA is an npz archive with `x` and `y`
(or `x_train` and `y_train`), or a folder with MNIST's IDX files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 2000
DEFAULT_HIDDEN = 1000
SHAPES = ("gaussian", "laplace")


class Unchecked(Exception):
    """This script cannot check such a certificate."""


class Invalid(Exception):
    """The certificate says something that is not so."""


# --- levels ---------------------------------------------------------------------------------------


def frequencies(shape: str, scale: float) -> list[int]:
    """Units of 2⁻³² for |level| = 0, 1, …, K; one unit is left for all beyond."""
    context = Context(prec=60, rounding=ROUND_HALF_EVEN)
    exact = Decimal(scale)
    if shape == "gaussian":
        width = context.multiply(context.multiply(exact, exact), Decimal(2))
        ratio = context.exp(context.divide(Decimal(-1), width))
        growth = context.multiply(ratio, ratio)
    else:
        ratio, growth = context.exp(context.divide(Decimal(-1), exact)), Decimal(1)
    weights, weight = [], Decimal(1)
    while weight > Decimal(10) ** -30:
        weights.append(weight)
        weight, ratio = context.multiply(weight, ratio), context.multiply(ratio, growth)
    total = weights[0]
    for weight in weights[1:]:
        total = context.add(total, context.add(weight, weight))
    units = context.divide(Decimal(2**32), total)
    floor = Context(prec=60, rounding=ROUND_FLOOR)
    found = [int(floor.to_integral_value(context.multiply(each, units))) for each in weights[1:]]
    found = [each for each in found if each]
    return [2**32 - 1 - 2 * sum(found), *found]


def decoded(message: bytes, count: int, shape: str, scale: float) -> tuple[list[int], float]:
    """The levels of a message, and their −log₂ P.

    Everything is an interval (start, length, precision) of a range coder. The intervals are kept,
    and coding them must give the message again: one that was cut or lengthened does not.
    """
    table = frequencies(shape, scale)
    starts = list(accumulate([table[0], *(f for f in table[1:] for _ in "+-")], initial=0))
    parts: list[tuple[int, int, int]] = []
    low, width, place = int.from_bytes(message[:16].ljust(16, b"\0"), "big"), 1 << 128, 16

    def take(choose: Callable[[int], tuple[int, int]], precision: int) -> int:
        nonlocal low, width, place
        unit = width >> precision
        start, length = choose(min(low // unit, (1 << precision) - 1))
        parts.append((start, length, precision))
        low, width = low - unit * start, unit * length
        while width <= 1 << 96:
            low = low << 32 | int.from_bytes(message[place : place + 4].ljust(4, b"\0"), "big")
            width, place = width << 32, place + 4
        return start

    def bit() -> int:
        return take(lambda target: (target, 1), 1)

    levels, bits = [], 0.0
    for _ in range(count):

        def of_level(target: int) -> tuple[int, int]:
            index = bisect_right(starts, target) - 1
            return starts[index], table[(index + 1) // 2] if index < len(starts) - 1 else 1

        index = bisect_right(starts, take(of_level, 32)) - 1
        size, negative = (index + 1) // 2, index % 2 == 0
        if index == len(starts) - 1:
            negative, zeros, beyond = bool(bit()), 0, 1
            while not bit():
                zeros += 1
                if zeros > 62:
                    raise Invalid("the message has a level that does not end")
            for _ in range(zeros):
                beyond = 2 * beyond + bit()
            size = len(table) - 1 + beyond
        levels.append(-size if negative else size)
    bits = math.fsum(precision - math.log2(length) for _, length, precision in parts)
    if encoded(parts) != message:
        raise Invalid("the message is not that of its levels: it was cut, lengthened or changed")
    return levels, bits


def encoded(parts: Sequence[tuple[int, int, int]]) -> bytes:
    """The message of a row of intervals: the shortest binary fraction within all of them."""
    words: list[int] = []
    low, width = 0, 1 << 128

    def carried(value: int) -> int:
        place = len(words) - 1
        if value >> 128:
            while words[place] == 2**32 - 1:
                words[place] = 0
                place -= 1
            words[place] += 1
        return value & ((1 << 128) - 1)

    for start, length, precision in parts:
        unit = width >> precision
        low, width = carried(low + unit * start), unit * length
        while width <= 1 << 96:
            words.append(low >> 96)
            low, width = low << 32 & ((1 << 128) - 1), width << 32
    value = next(
        value
        for value in (-(-low >> spare) << spare for spare in range(128, -1, -1))
        if value < low + width
    )
    value = carried(value)
    whole = b"".join(word.to_bytes(4, "big") for word in words)
    return (whole + value.to_bytes(16, "big")).rstrip(b"\0")


# --- weights --------------------------------------------------------------------------------------


def mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def signs(seed: int, stream: int, rows: int, columns: int) -> np.ndarray:
    """A matrix of ±1: bits of SplitMix64 at a counter."""
    key = mixed(mixed(np.array([seed % 2**64], np.uint64)) + np.uint64(stream))
    counter = np.arange(1, -(-rows * columns // 64) + 1, dtype=np.uint64)
    words = mixed(key + counter * np.uint64(0x9E3779B97F4A7C15)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: rows * columns]
    return 1.0 - 2.0 * bits.reshape(rows, columns)


def near_square(count: int) -> tuple[int, int]:
    columns = math.isqrt(count - 1) + 1
    return -(-count // columns), columns


def projected(kind: str, total: int, levels: np.ndarray, seed: int, step: float) -> np.ndarray:
    """P q Δ: a sum of integers, exact in float64, times one number."""
    kinds, moved = kind.split("+"), np.zeros(total)
    if not len(levels):
        return moved
    share = step if len(kinds) == 1 else 1 / math.sqrt(len(kinds)) * step
    (a, b), d = near_square(total), len(levels)
    for term, name in enumerate(kinds):
        first, second, scale = 2 * term, 2 * term + 1, 1 / math.sqrt(total)
        if name == "dense":
            whole = signs(seed, first, total, d) @ levels
        elif name == "kronecker-product":
            p, r = near_square(d)
            block = np.pad(levels, (0, p * r - d)).reshape(p, r)
            whole = signs(seed, first, a, p) @ block @ signs(seed, second, b, r).T
        elif name == "kronecker-sum":
            u, v = signs(seed, first, a, d), signs(seed, second, b, d)
            v[0] = u[0]
            whole, scale = (u @ levels)[:, None] + v @ levels, 1 / math.sqrt(2 * total)
        else:
            raise Unchecked(f"the projector {name!r} is not known here")
        moved = moved + whole.reshape(-1)[:total] * (scale * share)
    return moved


def drawn(sizes: Sequence[tuple[int, int]], seed: int) -> list[np.ndarray]:
    """Weights and biases of linear layers (outputs, inputs) as torch draws them on the CPU."""
    twister = np.random.MT19937()
    twister._legacy_seeding(seed)
    found = []
    for outputs, inputs in sizes:
        for shape in ((outputs, inputs), (outputs,)):
            if len(shape) == 2:  # Kaiming's bound with the gain √(2/(1 + 5)) of torch's default
                bound = math.sqrt(3) * (math.sqrt(2 / (1 + math.sqrt(5) ** 2)) / math.sqrt(inputs))
            else:
                bound = 1 / math.sqrt(inputs)
            low = np.float32(-bound)
            raw = twister.random_raw(math.prod(shape)) & (2**24 - 1)
            range_ = np.float64(np.float32(bound) - low)
            found.append((raw * 2.0**-24 * range_ + low).astype(np.float32).reshape(shape))
    return found


def moved_weights(start: Sequence[np.ndarray], shift: np.ndarray) -> list[np.ndarray]:
    """θ₀ + P q Δ in float64, rounded once to float32."""
    found, place = [], 0
    for each in start:
        part = shift[place : place + each.size].reshape(each.shape)
        found.append((each.astype(np.float64) + part).astype(np.float32))
        place += each.size
    return found


def errors_of(weights: Sequence[np.ndarray], inputs: np.ndarray, labels: np.ndarray) -> int:
    first, shift, second, end = (each.astype(np.float64) for each in weights)
    right = 0
    for place in range(0, len(labels), CHUNK):
        part, own = inputs[place : place + CHUNK].astype(np.float64), labels[place : place + CHUNK]
        outputs = np.tanh(part.reshape(len(part), -1) @ first.T + shift) @ second.T + end
        rows = np.arange(len(part))
        scores = outputs[rows, own].copy()
        outputs[rows, own] = -np.inf
        right += int((scores > outputs.max(1)).sum())
    return len(labels) - right


# --- data -----------------------------------------------------------------------------------------


def read_data(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images or rows as float32, grey and colour images with their channels second; labels."""
    if path.is_dir():
        inputs, labels = (
            _idx(path, f"train-{name}-ubyte") for name in ("images-idx3", "labels-idx1")
        )
    else:
        with np.load(path, allow_pickle=False) as archive:
            inputs, labels = (
                archive[name if name in archive.files else f"{name}_train"] for name in "xy"
            )
    if inputs.ndim == 3:
        inputs = inputs[:, None]
    elif inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3):
        inputs = inputs.transpose(0, 3, 1, 2)
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        inputs = inputs.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(inputs, dtype=np.float32), labels.reshape(-1).astype(np.int64)


def _idx(folder: Path, name: str) -> np.ndarray:
    for each in (name, name + ".gz", f"raw/{name}", f"raw/{name}.gz"):
        if (folder / each).is_file():
            raw = (folder / each).read_bytes()
            raw = gzip.decompress(raw) if each.endswith(".gz") else raw
            axes = raw[3]
            sizes = np.frombuffer(raw, ">i4", axes, 4)
            return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(sizes)
    raise Unchecked(f"{folder}: expected {name} there, plain or gzipped")


def data_hash(inputs: np.ndarray, labels: np.ndarray) -> str:
    """SHA-256 of all inputs in float32 and all labels in int64, little-endian."""
    found = hashlib.sha256(inputs.astype("<f4").tobytes())
    found.update(labels.astype("<i8").tobytes())
    return found.hexdigest()


# --- the bound ------------------------------------------------------------------------------------


def occam(errors: int, n: int, bits: float, delta: float) -> float:
    """The largest R with kl(errors/n ‖ R) ≤ (bits ln 2 + ln 1/δ)/n."""
    budget, error = (bits * math.log(2) - math.log(delta)) / n, errors / n
    low, high = error, 1.0
    for _ in range(200):
        rate = (low + high) / 2
        distance = error * math.log(error / rate) if error else 0.0
        distance += (1 - error) * math.log((1 - error) / (1 - rate)) if error < 1 > rate else 0.0
        low, high = (rate, high) if distance <= budget else (low, rate)
    return high


# --- the certificate ------------------------------------------------------------------------------


def check(content: Mapping[str, Any], folder: Path, data: Path) -> dict[str, Any]:
    """What was found again; raises `Invalid` or `Unchecked`. `folder` may hold a trained start."""
    expect(digest(content) == content["digest"], "the file was altered: its digest is another")
    inputs, labels = read_data(data)
    expect(
        len(labels) == content["n"] and data_hash(inputs, labels) == content["data"]["sha256"],
        "the data are not those of the certificate",
    )
    start = start_of(content, folder, math.prod(inputs.shape[1:]))
    subspace = content["subspace"]
    total = sum(each.size for each in start.values())
    expect(total == subspace["weights"], f"the network has {total} weights")
    expect(start_hash(start) == content["start"]["sha256"], "the start has another hash")
    bits, levels = account(content)
    for name, value in bits.items():
        stated = content["bits"][name]
        same = math.isclose(value, stated, rel_tol=1e-9, abs_tol=1e-6)
        expect(same, f"{stated:.3f} bits are charged for {name}, they are {value:.3f}")
    shift = projected(
        subspace["projector"], total, np.array(levels, float), subspace["seed"], content["step"]
    )
    weights = moved_weights(list(start.values()), shift)
    errors = errors_of(weights, inputs, labels)
    expect(errors == content["errors"], f"{errors} errors, the file says {content['errors']}")
    bound = occam(errors, content["n"], bits["total"], content["delta"])
    same = math.isclose(bound, content["bound"], rel_tol=1e-9, abs_tol=1e-9)
    expect(same, f"a bound of {content['bound']:.6f} is stated, it is {bound:.6f}")
    return {"bound": bound, "train_error": errors / content["n"], "bits": bits["total"]}


def expect(holds: bool, reason: str) -> None:
    if not holds:
        raise Invalid(reason)


def digest(content: Mapping[str, Any]) -> str:
    own = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def account(content: Mapping[str, Any]) -> tuple[dict[str, float], list[int]]:
    """Every part of −log₂ P(h) from what is declared and from the message, and the levels."""
    grid, entry, prior = content["grid"], content["entry"], content["prior"]
    if content["symmetry"] is not None or not entry["dimension"]:
        raise Unchecked("averages and held-out certificates are checked by `isotropy verify`")
    choices = ("dimensions", "betas", "widths", "seeds")
    for name in choices:
        one = {"dimensions": "dimension", "betas": "beta", "widths": "width", "seeds": "seed"}[name]
        expect(entry[one] in grid[name], f"{entry[one]} is not among the declared {name}")
    expect(content["step"] in grid["steps"], "the step is not one of the declared")
    expect(content["scale"] in prior["scales"], "the scale is not one of the declared")
    for name in ("dimension", "seed"):
        expect(content["subspace"][name] == entry[name], f"the subspace has another {name}")
    for name in (*choices, "steps", "scales"):
        values = prior[name] if name == "scales" else grid[name]
        expect(len(set(values)) == len(values), f"{name} are declared twice")
    expect(grid["trials"] >= 1, f"{grid['trials']} trials")
    expect(prior["shape"] in SHAPES, f"a prior of shape {prior['shape']!r}")
    weights = content["subspace"]["weights"]
    expect(entry["dimension"] <= weights, f"{entry['dimension']} levels for {weights} weights")
    message = bytes.fromhex(content["message"])
    levels, weights = decoded(message, entry["dimension"], prior["shape"], content["scale"])
    bits = {
        "grid": math.log2(math.prod(len(grid[name]) for name in choices) * grid["trials"]),
        "step": math.log2(len(grid["steps"])),
        "scale": math.log2(len(SHAPES) * len(prior["scales"])),
        "weights": weights,
        "symmetries": 0.0,
    }
    return {**bits, "total": math.fsum(bits.values())}, levels


def start_of(content: Mapping[str, Any], folder: Path, inputs: int) -> dict[str, np.ndarray]:
    """θ₀ by name: drawn by the seed, or from the file beside the certificate."""
    network, start = content["network"], content["start"]
    if network["kind"] != "backbone" or network["name"] != "mlp":
        raise Unchecked(f"the network {network['name']!r} is not an mlp")
    hidden = network["arguments"].get("hidden", DEFAULT_HIDDEN)
    outputs = content["outputs"]
    names = ("1.weight", "1.bias", "3.weight", "3.bias")
    shapes = (hidden, inputs), (hidden,), (outputs, hidden), (outputs,)
    expect(start["seed"] == content["entry"]["seed"], "the start has another seed")
    if start.get("stretch") is not None:
        raise Unchecked("a stretched subspace is checked by `isotropy verify`")
    if start["kind"] is None:
        weights = drawn(shapes[::2], start["seed"])
        return dict(zip(names, weights, strict=True))
    if start.get("left_out"):
        raise Unchecked("which examples were left out, only `isotropy verify` can tell")
    expect(
        start.get("trained_on") != content["data"]["fingerprint"],
        "the start was trained on the data that are counted",
    )
    stored = safetensors(folder / "start.safetensors")
    expected = {f"start/{name}": shape for name, shape in zip(names, shapes, strict=True)}
    same = {name: each.shape for name, each in stored.items()} == expected
    expect(same, "the file of the start is of another network")
    return {name: stored[f"start/{name}"] for name in names}


def safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a file: a length, a JSON of names and places, and the numbers."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, each in json.loads(raw[8:end]).items():
        if name != "__metadata__":
            low, high = (end + offset for offset in each["data_offsets"])
            expect(each["dtype"] == "F32", f"{name} is not of float32")
            found[name] = np.frombuffer(raw[low:high], "<f4").reshape(each["shape"])
    return found


def start_hash(start: Mapping[str, np.ndarray]) -> str:
    told = hashlib.sha256()
    for name, values in start.items():
        told.update(f"{name} {values.shape} {values.dtype}\n".encode())
        told.update(values.astype("<f4").tobytes())
    return told.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"bound": None, "train_error": None, "bits": None}
    reason, status = None, 0
    try:
        content = json.loads(options.file.read_text(encoding="utf-8"))
        found = check(content, options.file.parent, options.data)
    except Invalid as error:
        reason, status = str(error), 1
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        reason, status = f"what the file says does not fit together: {error!r}", 1
    except (Unchecked, OSError) as error:
        print(f"cannot check this certificate: {error}", file=sys.stderr)
        return 2
    told = {"valid": status == 0, **found, "reason": reason}
    if options.json:
        print(json.dumps(told, indent=2))
    elif status:
        print(f"invalid: {reason}")
    else:
        print(
            f"valid: {found['train_error']:.2%} of the data are wrong, {found['bits']:.0f} bits, "
            f"with probability {1 - content['delta']:g} at most {found['bound']:.2%} of new data"
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
