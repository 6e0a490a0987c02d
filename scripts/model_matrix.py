"""Which networks of timm and torchvision work: one of each family, learned and measured.

    python scripts/model_matrix.py [--only NAME …] [--again] [--seconds 120] [--workers 1]

Each network has random weights and two classes. It is trained by `isotropy.learn` for two epochs on
8 pictures of stripes with 2 copies each, with a step of the ranges by the evidence, and is then
measured by `isotropy.measure` under rotations, as a whole. No option says anything about the
network. A network that is refused is tried once more with the remedy that the refusal names
(`REMEDIES`). What came out goes to results/model_matrix.json after every network; the table of
docs/networks.md is made of that file.

Each network runs in a process of its own, which is ended after `--seconds`; what was not finished
by then is said in the table. `--workers` networks run at the same time and share the cores; the
seconds are those of a network beside the others. A network whose library is not installed keeps the
result it had.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import isotropy
from isotropy.checks import CallerError
from isotropy.records import commit

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "model_matrix.json"
PAGE = ROOT / "docs" / "networks.md"
BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"
EXAMPLES, COPIES, EPOCHS = 8, 2, 2


@dataclass(frozen=True)
class Case:
    """One network: where it is from, its family, its name, the size of pictures, arguments."""

    source: str
    family: str
    name: str
    size: int = 32
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.source}:{self.name}"


def _timm(family: str, name: str, size: int = 32, **arguments: Any) -> Case:
    return Case("timm", family, name, size, arguments)


def _torchvision(name: str, size: int = 32, **arguments: Any) -> Case:
    return Case("torchvision", name.partition("_")[0], name, size, arguments)


CASES = (
    _timm("vision_transformer", "vit_tiny_patch16_224", 64, img_size=64, depth=4),
    _timm("deit", "deit_tiny_distilled_patch16_224", 64, img_size=64, depth=4),
    _timm("resnet", "resnet18"),
    _timm("resnetv2", "resnetv2_18"),
    _timm("convnext", "convnext_atto"),
    _timm("efficientnet", "efficientnet_lite0"),
    _timm("mobilenetv3", "mobilenetv3_small_050"),
    _timm("mlp_mixer", "mixer_s32_224", 64, img_size=64),
    _timm("swin_transformer", "swin_tiny_patch4_window7_224", 56, img_size=56, depths=(1, 1, 1),
          embed_dim=48, num_heads=(2, 2, 4)),
    _timm("swin_transformer_v2", "swinv2_tiny_window8_256", 64, img_size=64, depths=(1, 1, 1),
          embed_dim=48, num_heads=(2, 2, 4), window_size=4),
    _timm("levit", "levit_128s", 224),
    _timm("regnet", "regnetx_002"),
    _timm("regnet", "regnety_002"),
    _timm("densenet", "densenet121"),
    _timm("ghostnet", "ghostnet_050"),
    _timm("hardcorenas", "hardcorenas_a"),
    _timm("lcnetv2", "lcnetv2_base"),
    _timm("repvit", "repvit_m0_9"),
    _timm("repghost", "repghostnet_050"),
    _timm("rexnet", "rexnet_100"),
    _timm("res2net", "res2net50_14w_8s"),
    _timm("resnest", "resnest14d"),
    _timm("senet", "legacy_seresnet18"),
    _timm("sknet", "skresnet18"),
    _timm("selecsls", "selecsls42"),
    _timm("dla", "dla46_c"),
    _timm("cspnet", "cspresnet50"),
    _timm("vovnet", "ese_vovnet19b_slim_dw"),
    _timm("hgnet", "hgnetv2_b0"),
    _timm("fasternet", "fasternet_t0"),
    _timm("starnet", "starnet_s1"),
    _timm("edgenext", "edgenext_xx_small"),
    _timm("mobilevit", "mobilevit_xxs"),
    _timm("tiny_vit", "tiny_vit_5m_224", 224),
    _timm("cait", "cait_xxs24_224", 64, img_size=64, depth=3),
    _timm("xcit", "xcit_nano_12_p16_224", 64, img_size=64, depth=3),
    _timm("pit", "pit_ti_224", 224, depth=(1, 1, 1)),
    _timm("pvt_v2", "pvt_v2_b0"),
    _timm("metaformer", "poolformerv2_s12"),
    _timm("focalnet", "focalnet_tiny_srf"),
    _timm("mambaout", "mambaout_femto"),
    _timm("sequencer", "sequencer2d_s", 64, img_size=64, layers=(1, 1, 1, 1),
          embed_dims=(48, 96, 96, 96), hidden_sizes=(12, 24, 24, 24)),
    _timm("nfnet", "nf_regnet_b0"),
    _timm("visformer", "visformer_tiny", 224),
    _timm("swiftformer", "swiftformer_xs", 64),
    _timm("efficientvit_mit", "efficientvit_b0"),
    _timm("efficientformer_v2", "efficientformerv2_s0", 224),
    _timm("inception_next", "inception_next_atto"),
    _timm("shvit", "shvit_s1"),
    _torchvision("alexnet", 64),
    _torchvision("googlenet", 64, init_weights=False),
    _torchvision("mnasnet0_5"),
    _torchvision("mobilenet_v2"),
    _torchvision("mobilenet_v3_small"),
    _torchvision("regnet_y_400mf"),
    _torchvision("resnet18"),
    _torchvision("shufflenet_v2_x0_5"),
    _torchvision("squeezenet1_1"),
    _torchvision("efficientnet_b0"),
    _torchvision("vit_b_32", 64, image_size=64),
    _torchvision("swin_t", 64),
)  # fmt: skip


REMEDIES: dict[str, dict[str, Any]] = {
    "--curvature diagonal-ggn": {"curvature": "diagonal-ggn"},
}
"""What a refusal may name, and the settings that follow it."""


def make(case: Case) -> nn.Module:
    """The network of a case, with random weights."""
    torch.manual_seed(0)
    if case.source == "timm":
        import timm

        made: nn.Module = timm.create_model(case.name, num_classes=2, **case.arguments)
        return made
    import torchvision

    found: nn.Module = torchvision.models.get_model(case.name, num_classes=2, **case.arguments)
    return found


def pictures(size: int) -> tuple[Tensor, Tensor]:
    """Stripes, upright or lying, in noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(EXAMPLES) % 2
    waves = torch.sin(torch.arange(size) * 6.0 / size * 3.1416)
    upright = waves.expand(3, size, size)
    images = torch.stack([upright if label else upright.mT for label in labels])
    return images + 0.3 * torch.randn(images.shape, generator=generator), labels


def tried(case: Case, **settings: Any) -> dict[str, Any]:
    """Learn and measure; what it took."""
    network, data = make(case), pictures(case.size)
    actions = isotropy.affine(("rotation",))
    config = isotropy.LearnConfig(
        epochs=EPOCHS, samples=COPIES, test_samples=COPIES, search=False, burn_in=1,
        batch_size=8, **settings,
    )  # fmt: skip
    started = time.monotonic()
    result = isotropy.learn(network, data, actions=actions, config=config)
    learned = time.monotonic()
    found = isotropy.measure(
        result.trainer.network.eval(), data[0], actions, layers=False, finite=False, examples=4
    )
    record = result.record
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "learn_seconds": round(learned - started, 1),
        "measure_seconds": round(time.monotonic() - learned, 1),
        "log_evidence": record["log_evidence"],
        "evidence_error": record["evidence"]["error"],
        "error": found.actions[0]["error"],
        "diagonal": record["fallback"],
        "constants": record["constants"],
        "batch_norm": 0 if record["batch_norm"] is None else record["batch_norm"]["layers"],
    }


def entry(case: Case) -> dict[str, Any]:
    """One row of the results: what came out, or why it was refused and what its remedy gave."""
    warnings.simplefilter("ignore")
    made_with = {"commit": commit(), "torch": torch.__version__}
    row: dict[str, Any] = {**asdict(case), **made_with}
    try:
        return {**row, "outcome": "works", **tried(case)}
    except CallerError as error:
        row |= {"outcome": "refused", "refusal": str(error)}
        for words, settings in REMEDIES.items():
            if words.split()[-1] in str(error):
                try:
                    return {**row, "outcome": "works with the remedy", "remedy": words,
                            **tried(case, **settings)}  # fmt: skip
                except CallerError as second:
                    row["remedy_refusal"] = str(second)
        return row
    except Exception as error:  # whatever a network of others does is a result here
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        message = f"{type(error).__name__}: {error}"[:400]
        return {**row, "outcome": "fails", "refusal": message, "where": where}


def _send(case: Case, threads: int, answer: Connection) -> None:
    torch.set_num_threads(threads)
    answer.send(entry(case))


def run_apart(case: Case, seconds: float, threads: int) -> dict[str, Any]:
    """`entry` in a process of its own, ended after so many seconds.

    The process is started afresh: one that is forked beside other threads may wait for a lock that
    no thread of its own holds.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(case, threads, there))
    process.start()
    there.close()  # so that the end of the process is the end of the pipe
    try:
        if here.poll(seconds):
            row: dict[str, Any] = here.recv()
            return row
        return {**asdict(case), "outcome": "not finished", "refusal": f"after {seconds:g} s"}
    except EOFError:
        process.join()
        return {**asdict(case), "outcome": "fails",
                "refusal": f"the process ended with status {process.exitcode}"}  # fmt: skip
    finally:
        process.kill()
        process.join()
        here.close()


# -- the table ---------------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, and a sentence on how many work."""
    working = [row for row in rows if row["outcome"] == "works"]
    lines = [
        f"{len(working)} of {len(rows)} networks that were tried learn and measure without an "
        f"option. {len(CASES) - len(rows)} of the {len(CASES)} networks of the script have no "
        "result yet with the code as it is: not run, not finished in time, or run before a fix. "
        f"{_made_with(rows)}",
        "",
        "| from | family | network | pixels | parameters | outcome | seconds | what it took |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda each: (each["source"], each["family"], each["name"])):
        seconds = f"{row['learn_seconds']:.0f}" if "learn_seconds" in row else "–"
        size = f"{row['parameters'] / 1e6:.1f} M" if "parameters" in row else "–"
        lines.append(
            f"| {row['source']} | {row['family']} | `{row['name']}` | {row['size']} | {size} | "
            f"{row['outcome']} | {seconds} | {_took(row)} |"
        )
    return "\n".join(lines)


def _made_with(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many rows are of which commit and torch."""
    kinds = Counter(
        f"{row['commit']} with torch {row['torch']}" if "commit" in row else "earlier commits"
        for row in rows
    )
    return f"Rows by commit: {', '.join(f'{n} of {kind}' for kind, n in kinds.most_common())}."


def _took(row: Mapping[str, Any]) -> str:
    if "diagonal" not in row:
        return str(row["refusal"]).replace("|", "/").replace("\n", " ")[:160]
    parts = []
    if row["diagonal"]:
        kinds = sorted(set(row["diagonal"].values()))
        parts.append(f"diagonal blocks of {len(row['diagonal'])} tensors ({', '.join(kinds[:3])})")
    if row["constants"]:
        reasons = sorted({str(why) for why in row["constants"].values()})
        short = reasons[0] if len(reasons) == 1 else f"{reasons[0]}, …"
        parts.append(f"{len(row['constants'])} constants ({short})")
    if row["batch_norm"]:
        parts.append(f"{row['batch_norm']} BatchNorm")
    if row["evidence_error"] > 1e-3:
        parts.append(f"large factors, at most {row['evidence_error']:.2g} nats off")
    made = [f"{name} {value}" for name, value in row["arguments"].items() if "size" not in name]
    if made:
        parts.append(f"made smaller: {', '.join(made)}".replace("|", "/"))
    return "; ".join(parts) or "rules for all"


def write_page(rows: Sequence[Mapping[str, Any]], page: Path = PAGE) -> None:
    """Put the table between its marks."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


def waiting(
    known: Mapping[str, Mapping[str, Any]], only: Sequence[str] = (), again: bool = False
) -> list[Case]:
    """The networks to run: those asked for, without a finished result, whose library is there."""
    found = []
    for case in CASES:
        finished = known.get(case.key, {}).get("outcome", "not finished") != "not finished"
        asked = case.name in only if only else True
        if asked and (again or not finished) and importlib.util.find_spec(case.source):
            found.append(case)
    return found


def kept(known: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Write the rows there are, in the order of the cases; a file is whole at any time."""
    rows = [known[each.key] for each in CASES if each.key in known]
    head = {"examples": EXAMPLES, "copies": COPIES, "epochs": EPOCHS}
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps({**head, "rows": rows}, indent=1, default=list) + "\n")
    partial.replace(RESULTS)
    return rows


def main() -> None:
    """Run what has no result yet, and write results and page."""
    parser = argparse.ArgumentParser(description="Which networks work.")
    parser.add_argument("--only", nargs="*", default=[], help="Names of networks.")
    parser.add_argument("--again", action="store_true", help="Also those that have a result.")
    parser.add_argument("--seconds", type=float, default=120.0, help="For each network.")
    parser.add_argument("--workers", type=int, default=1, help="Networks at the same time.")
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    known = {f"{row['source']}:{row['name']}": row for row in rows}
    threads = max(1, (os.cpu_count() or 1) // options.workers)
    with ThreadPoolExecutor(options.workers) as pool:
        runs = [
            pool.submit(run_apart, case, options.seconds, threads)
            for case in waiting(known, options.only, options.again)
        ]
        for run in as_completed(runs):
            row = run.result()
            key = f"{row['source']}:{row['name']}"
            known[key] = row
            print(key, row["outcome"], row.get("refusal", ""), flush=True)
            kept(known)
    write_page(kept(known))


if __name__ == "__main__":
    main()
