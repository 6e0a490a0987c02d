"""Tables of the equivariant experiments, from the rows in results/: for `results_page.py`.

Geometric means over seeds, in the order of the experiments' own TOML files, with published numbers
beside them where the thesis prints some (Finzi 2023, chapter 2 and appendix A.1). `in_short` has a
sentence of each for the README (`results_table.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.experiments.thesis import bases, data_efficiency, dynamics

NOT_RUN = "Not run yet."
LEAST_EXAMPLES, MANY_EXAMPLES = 100, 1000
"""N from which equivariant networks are to be ahead, and N at which by how much is told."""
LATE = 10
"""Iterations at the end, over which a norm that still falls has fallen by a tenth or more."""
RIVALS = (data_efficiency.AUGMENTED, data_efficiency.MLP)
Record = Mapping[str, Any]


def data_efficiency_table(results: Path) -> str:
    """Test error by network and N, and how many times the MLPs' are that of the own group's."""
    records = read_rows(results / "data-efficiency" / ROWS)
    if not records:
        return NOT_RUN
    errors = data_efficiency.mean_errors(records)
    ahead = _ahead(records)
    sizes = sorted({each["examples"] for each in records})
    lines = [
        f"| problem | network | parameters | {' | '.join(f'N = {size:,}' for size in sizes)} |",
        "|---" * (3 + len(sizes)) + "|",
    ]
    for problem, about in read_table("data-efficiency")["problems"].items():
        found = errors.get(problem, {})
        own = f"EMLP-{about['groups'][-1]}"
        for network in (*(f"EMLP-{group}" for group in about["groups"]), *RIVALS):
            if network in found:
                cells = _cells(found[network], sizes)
                count = _only(r["parameters"] for r in records if _is(r, problem, network))
                lines.append(f"| {about['title']} | {network} | {count:,} | {cells} |")
        for rival in RIVALS:
            ratios = {size: ahead.get((about["title"], rival, size)) for size in sizes}
            if any(ratios.values()):
                lines.append(
                    f"| | *{rival} over {own}* | | {_cells(ratios, sizes, emphasis='*')} |"
                )
    return "\n".join([*lines, "", _said_of(ahead), "", made_with(records)])


def _ahead(records: Sequence[Record]) -> dict[tuple[str, str, int], float]:
    """The rival's error over that of the problem's own group, by (problem's title, rival, N)."""
    errors = data_efficiency.mean_errors(records)
    found = {}
    for problem, about in read_table("data-efficiency")["problems"].items():
        own = errors.get(problem, {}).get(f"EMLP-{about['groups'][-1]}", {})
        for rival in RIVALS:
            for size, error in errors.get(problem, {}).get(rival, {}).items():
                if size in own:
                    found[about["title"], rival, size] = error / own[size]
    return found


def _said_of(ahead: Mapping[tuple[str, str, int], float]) -> str:
    """Where the lead is least, and what it is at a thousand examples."""
    later = {key: ratio for key, ratio in ahead.items() if key[2] >= LEAST_EXAMPLES}
    if not later:
        return "Too few rows to compare."
    (title, rival, size), least = min(later.items(), key=lambda pair: pair[1])
    by = f"by a factor of {least:.2g} or more" if least > 1 else "not everywhere"
    said = (
        f"From N = {LEAST_EXAMPLES} examples on, the test error of the equivariant network of the "
        f"problem's own group is smaller than that of the plain and of the augmented MLP {by} "
        f"(least: {least:.2g}, {title}, {rival}, N = {size:,})."
    )
    at = [
        f"{ratio:.0f} ({title})"
        for (title, rival, size), ratio in ahead.items()
        if rival == data_efficiency.MLP and size == MANY_EXAMPLES
    ]
    return said + (
        f" At N = {MANY_EXAMPLES:,} the MLP's is larger by {', '.join(at)}." if at else ""
    )


def dynamics_table(results: Path) -> str:
    """Rollout and momentum errors by group for both kinds of network, and what they show."""
    records = read_rows(results / "dynamics" / ROWS)
    if not records:
        return NOT_RUN
    table = read_table("dynamics")
    lines = [
        "| kind | network | parameters | rollout error | of the seeds | published "
        "| angular momentum error |",
        "|---|---|---|---|---|---|---|",
    ]
    rollouts = dynamics.table_of(records, "rollout_error")
    momenta = dynamics.table_of(records, "momentum_error")
    for kind in table["kinds"]:
        for network in table["networks"]:
            if network not in rollouts.get(kind, {}):
                continue
            own = [r for r in records if (r["kind"], r["network"]) == (kind, network)]
            seeds = sorted(r["rollout_error"] for r in own if r["rollout_error"])
            known = table["published"][kind].get(network)
            lines.append(
                f"| {kind} | {network} | {_only(r['parameters'] for r in own):,} | "
                f"{_short(rollouts[kind][network])} | {_short(seeds[0])} to {_short(seeds[-1])} | "
                f"{'' if known is None else known} | {_short(momenta[kind][network])} |"
            )
    said = [
        f"- {'Holds' if holds else 'Does not hold'}: {what}."
        for what, holds in dynamics.goals(records).items()
    ]
    return "\n".join([*lines, "", *said, *([""] if said else []), made_with(records)])


def convergence_table(results: Path) -> str:
    """How far and how fast each case came, the slowest first."""
    records = read_rows(results / "convergence" / ROWS)
    if not records:
        return NOT_RUN
    lines = [
        "| case | entries of the tensor | decades an iteration | left of ‖CX‖ at the end "
        "| nothing but rounding left |",
        "|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda each: bases.decades(each["norms"])):
        norms = record["norms"]
        lines.append(
            f"| {record['row']} | {record['size']:,} | {bases.decades(norms):.3f} | "
            f"{norms[-1] / norms[0]:.0e} | {_flat_from(norms)} |"
        )
    return "\n".join([*lines, "", made_with(records)])


def _flat_from(norms: Sequence[float]) -> str:
    """From which iteration on nothing but rounding is left, if it ever is."""
    if len(norms) <= LATE or norms[-1] < 0.9 * norms[-1 - LATE]:
        return f"not after {len(norms) - 1} iterations"
    return f"from iteration {next(n for n, norm in enumerate(norms) if norm <= 2 * norms[-1])}"


def goals_told(goals: Mapping[str, bool]) -> str:
    """A line for each goal, those that fail first."""
    ordered = sorted(goals.items(), key=lambda goal: goal[1])
    return "\n".join(
        f"- {'Holds' if holds else 'Does not hold'}: {what}." for what, holds in ordered
    )


def made_with(records: Sequence[Record]) -> str:
    """Seeds, device and time of these records; rows that ran beside each other all count."""
    seeds = sorted({each["seed"] for each in records})
    devices = sorted({device_text(each) for each in records})
    seconds = sum(each["seconds"] for each in records)
    told = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "one seed"
    return (
        f"{len(records)} records, {told}, {' and '.join(devices)}, {seconds:.0f} s in all, "
        "summed over rows."
    )


def device_text(record: Record) -> str:
    """The GPU's name, or how many threads of a CPU."""
    if "cuda" in record["device"]:
        return str(record["device_name"])
    count = record["threads"]
    return f"{count} CPU thread{'s' * (count != 1)}"


def _is(record: Record, problem: str, network: str) -> bool:
    return bool(record["problem"] == problem and record["network"] == network)


def _cells(values: Mapping[int, float | None], sizes: Iterable[int], emphasis: str = "") -> str:
    return " | ".join(
        f"{emphasis}{_short(values[size])}{emphasis}" if values.get(size) else "" for size in sizes
    )


def _short(value: float) -> str:
    """Two digits: 270, 5.4, 0.0014, 3.3e-07."""
    return f"{float(f'{value:.2g}'):g}"


def _only(values: Iterable[int]) -> int:
    """The one value that all have."""
    first, *others = set(values)
    assert not others, "records of one row differ"
    return first


# -- in a sentence each ------------------------------------------------------------------------


def in_short(results: Path) -> list[str]:
    """What was found, for those series and the benchmark that have been run."""
    said = []
    efficiency = read_rows(results / "data-efficiency" / ROWS)
    if efficiency:
        said.append(_said_of(_ahead(efficiency)))
    rollouts = dynamics.table_of(read_rows(results / "dynamics" / ROWS), "rollout_error")
    published = read_table("dynamics")["published"]
    pairs = [
        f"{words} {_short(rollouts[kind]['O(2)'])} with O(2) built in and "
        f"{_short(rollouts[kind]['MLP'])} without (published "
        f"{published[kind]['O(2)']} and {published[kind]['MLP']})"
        for kind, words in (("HNN", "Hamiltonian networks"), ("ODE", "neural ODEs"))
        if {"O(2)", "MLP"} <= set(rollouts.get(kind, {}))
    ]
    if pairs:
        said.append(f"Double spring pendulum, relative error over 30 s: {'; '.join(pairs)}.")
    for path in sorted((results / "bench").glob("equivariant_networks-*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        ratios = [each["ratio"] for each in report["networks"].values()]
        said.append(
            f"Forward and backward pass of an equivariant network: {min(ratios):.1f} to "
            f"{max(ratios):.1f} times that of a plain one of equal width ({device_text(report)})."
        )
    return said


TABLES = {
    "data-efficiency": data_efficiency_table,
    "dynamics": dynamics_table,
    "convergence": convergence_table,
}
