"""Certificates: what is charged and counted, what is refused, and the check of the file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import SIZE, bar_tensors, run_here, small_network
from torch import Tensor, nn

import isotropy
from isotropy.bounds.certificate import CERTIFICATE, digest
from isotropy.bounds.coding import Prior
from isotropy.bounds.compressing import Grid
from isotropy.bounds.inequalities import occam, occam_binomial
from isotropy.bounds.symmetries import coded_law
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.finite import flip
from isotropy.workflows.certifying import CertifyConfig, CertifyResult, certify, verify
from isotropy.workflows.runs.same_run import fingerprint

GRID = Grid((10, 20), (0.25, 0.5, 1.0, 2.0), (1.0,), (0,), (0, 1), trials=2)
FAST = CertifyConfig(grid=GRID, train=replace(GRID, dimensions=(20,), seeds=(0,)), epochs=6)
TORCH_LINEAR = "mlp:5"


def data(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    return bar_tensors(count, seed)


@pytest.fixture(scope="module")
def certified() -> CertifyResult:
    return certify(TORCH_LINEAR, data(), data(60, 1), config=FAST)


@pytest.fixture
def file(certified: CertifyResult, tmp_path: Path) -> Path:
    return certified.save(tmp_path / "run") / CERTIFICATE


# --- what is charged and counted ------------------------------------------------------------------


def test_every_part_of_the_account_is_there(certified: CertifyResult) -> None:
    record, claim = certified.record, certified.claim
    bits = record["bits"]
    assert bits["grid"] == math.log2(4 * 2)
    assert bits["step"] == math.log2(4)
    assert bits["scale"] == 1 + math.log2(len(Prior().scales))  # one bit for the shape
    assert bits["weights"] == Prior().bits(claim.levels(), claim.scale)
    assert bits["symmetries"] == 0
    parts = ("grid", "step", "scale", "weights", "symmetries")
    assert bits["total"] == pytest.approx(sum(bits[name] for name in parts))
    assert record["message_bits"] <= bits["weights"] + 2
    assert record["bound"] == occam(record["errors"], 300, bits["total"], 0.05) == certified.bound
    assert record["kind"] == "compression"
    assert set(record["bounds"]) >= {"occam", "hoeffding", "catoni", "maurer", "mcallester"}


def test_errors_are_those_of_the_decoded_network(certified: CertifyResult) -> None:
    inputs, targets = data()
    outputs = certified.model.double()(inputs.double())
    certified.model.float()
    assert int((outputs.argmax(1) != targets).sum()) == certified.record["errors"]
    assert certified.train_error == certified.record["errors"] / 300
    tested, labels = data(60, 1)
    wrong = certified.model(tested).argmax(1) != labels
    assert certified.record["test_error"] == pytest.approx(float(wrong.float().mean()))


def test_the_same_call_gives_the_same_certificate(certified: CertifyResult) -> None:
    again = certify(TORCH_LINEAR, data(), config=FAST)
    assert again.claim.message == certified.claim.message
    assert again.bound == certified.bound


def test_a_module_begins_at_its_own_initialisation() -> None:
    trained, other = small_network(), small_network(seed=5)
    with torch.no_grad():
        trained[1].weight.mul_(100)
    found, beside = (certify(each, data(), config=FAST) for each in (trained, other))
    assert found.claim.message == beside.claim.message
    by_name = certify(TORCH_LINEAR, data(), config=FAST)
    assert found.claim.message == by_name.claim.message
    assert torch.equal(trained[1].weight, small_network()[1].weight * 100)


def test_a_function_makes_the_network() -> None:
    found = certify(small_network, data(), config=FAST)
    assert found.record["network"] == "small_network"
    assert verify_in_memory(found, small_network)


def verify_in_memory(found: CertifyResult, model: Any, where: Path | None = None) -> bool:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = found.save(Path(folder) / "run")
        return verify(path, data(), model=model).valid


def test_dimensions_and_seeds_of_the_grid_are_tried() -> None:
    config = replace(FAST, train=replace(GRID, seeds=(0,)), epochs=3)
    found = certify(TORCH_LINEAR, data(), config=config)
    assert [each["dimension"] for each in found.record["trained"]] == [10, 20]
    assert found.bound <= min(each["bound"] for each in found.record["trained"]) + 1e-3


# --- verify ---------------------------------------------------------------------------------------


def test_a_certificate_can_be_checked(file: Path, certified: CertifyResult) -> None:
    found = verify(file, data())
    assert found.valid and found.reason is None
    assert found.record["bound"] == certified.bound
    assert found.record["train_error"] == certified.train_error
    assert found.record["bits"] == certified.record["bits"]["total"]


def altered(file: Path, change: Callable[[dict[str, Any]], None], *, signed: bool) -> Path:
    """The certificate with a change, and where `signed` with the digest that then belongs to it."""
    content = json.loads(file.read_text())
    change(content)
    if signed:
        content["digest"] = digest(content)
    file.write_text(json.dumps(content))
    return file


def flip_a_bit(content: dict[str, Any]) -> None:
    message = bytearray.fromhex(content["message"])
    message[len(message) // 2] ^= 16
    content["message"] = message.hex()


def more_levels(content: dict[str, Any]) -> None:
    """As many as would take forever to decode."""
    content["entry"]["dimension"] = content["subspace"]["dimension"] = 10**12
    content["grid"]["dimensions"][1] = 10**12


def more_weights(content: dict[str, Any]) -> None:
    more_levels(content)
    content["subspace"]["weights"] = 10**12


CHANGES: Mapping[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a flipped bit": (flip_a_bit, "bits are charged|does not fit|errors were counted"),
    "a truncated message": (lambda c: c.update(message=c["message"][:-4]), "cut|bits are charged"),
    "a longer message": (lambda c: c.update(message=c["message"] + "01"), "lengthened"),
    "no message": (lambda c: c.update(message="no"), "does not fit together"),
    "fewer errors": (lambda c: c.update(errors=c["errors"] - 1), "the bound is stated as"),
    "a lower bound": (lambda c: c.update(bound=c["bound"] / 2), "the bound is stated as"),
    "fewer bits": (lambda c: c["bits"].update(total=1.0), "1.000 bits are charged for total"),
    "a smaller grid": (lambda c: c["grid"].update(seeds=[0]), "bits are charged for grid"),
    "fewer trials": (lambda c: c["grid"].update(trials=1), "bits are charged for grid"),
    "no trials": (lambda c: c["grid"].update(trials=0), "trials of the grid"),
    "fewer scales": (lambda c: c["prior"]["scales"].pop(0), "bits are charged for scale"),
    "another shape": (lambda c: c["prior"].update(shape="cauchy"), "unknown shape of a prior"),
    "a step that was not declared": (lambda c: c.update(step=0.77), "not one of the declared"),
    "another seed": (lambda c: c["entry"].update(seed=1), "another seed than the entry"),
    "another seed of the start": (lambda c: c["start"].update(seed=1), "another seed than"),
    "another network": (lambda c: c["network"].update(arguments={"hidden": 6}), "is another"),
    "more weights": (lambda c: c["subspace"].update(weights=10**6), "the network is another"),
    "more levels than weights": (more_levels, "a subspace of 1000000000000 in"),
    "more levels and weights": (more_weights, "the network is another"),
    "another kind": (lambda c: c.update(kind="held-out"), "kind 'held-out' with dimension 20"),
    "another number of examples": (lambda c: c.update(n=3000), "the bound is stated as"),
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_what_was_altered_is_not_valid(file: Path, name: str, signed: bool) -> None:
    change, reasons = CHANGES[name]
    found = verify(altered(file, change, signed=signed), data())
    assert not found.valid
    assert found.record["bound"] is None
    expected = reasons.split("|") if signed else ["the file was altered"]
    assert any(each in str(found.reason) for each in expected), found.reason


ODD: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "a number that is not finite": lambda c: c["bits"].update(total=math.inf),
    "a seed that is no number": lambda c: c["entry"].update(seed="x"),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_entries_are_not_valid(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = verify(altered(file, change, signed=False), data())
    assert not found.valid and "the file was altered" in str(found.reason)


def test_a_bound_that_follows_from_an_altered_count_is_found_by_counting(file: Path) -> None:
    content = json.loads(file.read_text())
    errors = content["errors"] - 1
    bound = occam(errors, content["n"], content["bits"]["total"], content["delta"])
    found = verify(
        altered(file, lambda c: c.update(errors=errors, bound=bound), signed=True), data()
    )
    assert found.reason == f"{errors + 1} errors were counted, the certificate says {errors}"


def test_other_data_are_told_from_the_certificates(file: Path) -> None:
    inputs, targets = data()
    exchanged = targets.clone()
    exchanged[:2] = targets[:2].flip(0)
    pixel = inputs.clone()
    pixel[17, 0, 2, 3] += 1 / 255
    others = (inputs, exchanged), (inputs.flip(0), targets), (pixel, targets)
    for other in (data(seed=1), data(299), *others):
        assert "the data are not those of the certificate" in str(verify(file, other).reason)


def test_another_network_is_told_from_the_certificates(file: Path) -> None:
    assert "network" in str(verify(file, data(), model="mlp:6").reason)
    assert "network" in str(verify(file, data(), model=lambda: small_network().double()).reason)


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"schema": 3}')
    with pytest.raises(isotropy.CallerError, match="expected a certificate of schema 1"):
        verify(path, data())


# --- refusals -------------------------------------------------------------------------------------


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE * SIZE, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(1))
        return outputs + torch.randn_like(outputs)


class BatchMean(Noisy):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(1))
        return outputs - outputs.mean(0)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE * SIZE, 3)
        self.register_buffer("mean", torch.linspace(0, 1, SIZE * SIZE))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(1) - self.mean)
        return outputs


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE * SIZE, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ self.weight


def convolutions(normalisation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, 2), normalisation, nn.ReLU(), nn.Flatten(), nn.Linear(108, 3)
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (convolutions(nn.BatchNorm2d(12)), r"layer '1' is BatchNorm2d.*nn.GroupNorm\(4, 12\)"),
        (convolutions(nn.InstanceNorm2d(12, track_running_stats=True)), "track_running_stats"),
        (Noisy(), "its predictions are random"),
        (BatchMean(), "change when a batch is split"),
        (Centred(), "buffer 'mean' of the network may hold numbers that come from the data"),
        (Loose(), "cannot be begun anew"),
        (
            replace(parse_network("compact:4"), arguments={"width": 4, "spread": 0.3}),
            "its centre and spread were computed from data",
        ),
        (
            isotropy.InvariantModel(small_network(), augmentation_over(isotropy.affine())),
            "averaged",
        ),
    ],
)
def test_networks_that_cannot_be_certified_are_refused(model: Any, sentence: str) -> None:
    with pytest.raises(isotropy.CallerError, match=sentence):
        certify(model, data(), config=FAST)


def test_group_normalisation_is_fine() -> None:
    config = replace(FAST, epochs=1)
    assert certify(convolutions(nn.GroupNorm(4, 12)), data(), config=config).bound <= 1


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(isotropy.CallerError, match="9 examples are too few for any entry"):
        certify(TORCH_LINEAR, data(9), config=FAST)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(isotropy.CallerError, match="delta: expected a probability"):
        CertifyConfig(delta=delta)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_some_epochs_are_before_rounding_and_some_after(share: float) -> None:
    with pytest.raises(isotropy.CallerError, match="real_share: expected a share between"):
        CertifyConfig(real_share=share)


def test_what_was_not_declared_cannot_be_trained() -> None:
    with pytest.raises(isotropy.CallerError, match="30 is not among the dimensions"):
        CertifyConfig(grid=GRID, train=replace(GRID, dimensions=(30,)))


# --- starts ---------------------------------------------------------------------------------------


def learned_on(count: int, seed: int, folder: Path) -> Path:
    config = isotropy.LearnConfig(epochs=2, samples=2, batch_size=20, search=False, seed=0)
    words = parse_network(TORCH_LINEAR)
    network = words.build((1, SIZE, SIZE), 3)
    rows = isotropy.LabelledData(*data(300, seed), None, f"bars {seed}")
    train = rows if count == 300 else rows.subset(count, 0)
    isotropy.learn(
        network, train, objective="none", config=config, folder=folder, network=words, verdicts=0
    )
    return folder


def test_a_start_from_other_data_is_a_transfer(tmp_path: Path) -> None:
    run = learned_on(300, 3, tmp_path / "before")
    mine = isotropy.LabelledData(*data(), None, "bars 0")
    found = certify(None, mine, config=FAST, start=run, folder=tmp_path / "run")
    assert found.record["kind"] == "transfer"
    assert found.record["n"] == 300
    assert verify(tmp_path / "run", mine).valid


def test_a_start_from_a_part_leaves_that_part_out(tmp_path: Path) -> None:
    run = learned_on(100, 0, tmp_path / "before")
    mine = isotropy.LabelledData(*data(), None, "bars 0")
    found = certify(None, mine, config=FAST, start=run, folder=tmp_path / "run")
    assert found.record["kind"] == "data-dependent"
    assert found.record["n"] == 200
    assert found.claim.data["fingerprint"] == fingerprint(mine.without_subset(100, 0))
    assert verify(tmp_path / "run", mine).valid


def test_a_start_from_the_same_data_is_refused(tmp_path: Path) -> None:
    run = learned_on(300, 0, tmp_path / "before")
    mine = isotropy.LabelledData(*data(), None, "bars 0")
    with pytest.raises(isotropy.CallerError, match="was trained on the same data"):
        certify(None, mine, config=FAST, start=run)
    with pytest.raises(isotropy.CallerError, match="which of them cannot be told"):
        certify(None, mine.subset(250, 7), config=FAST, start=run)


def test_what_is_left_out_trains_the_start_and_no_message_is_a_test_set(tmp_path: Path) -> None:
    grid = Grid((0, 10), (1.0,), (1.0,), (0,), (0,))
    train = replace(grid, dimensions=(0,))
    config = CertifyConfig(grid=grid, train=train, left_out=0.5, epochs=20)
    found = certify(TORCH_LINEAR, data(), config=config, folder=tmp_path / "run")
    record = found.record
    assert record["kind"] == "held-out"
    assert (record["n"], record["dimension"], record["message_bits"]) == (150, 0, 0)
    assert record["bits"]["total"] == 1.0  # the choice between the two dimensions
    assert record["bound"] == occam_binomial(record["errors"], 150, 1.0, 0.05)
    assert verify(tmp_path / "run", data()).valid


def test_a_start_brings_its_own_width() -> None:
    grid = replace(GRID, widths=(5, 6))
    config = CertifyConfig(grid=grid, train=grid, left_out=0.5, epochs=1)
    with pytest.raises(isotropy.CallerError, match="widths: expected none in the grid.* got 5, 6"):
        certify(TORCH_LINEAR, data(), config=config)


def test_a_start_that_was_changed_is_another_network(tmp_path: Path) -> None:
    from isotropy.bounds.certificate import START
    from isotropy.records import load_tensors, save_tensors

    grid = Grid((0,), (1.0,), (1.0,), (0,), (0,))
    config = CertifyConfig(grid=grid, train=grid, left_out=0.5, epochs=2)
    certify(TORCH_LINEAR, data(), config=config, folder=tmp_path)
    file = tmp_path / CERTIFICATE
    before = file.read_text()
    whole = isotropy.LabelledData(*data(), None, "bars")
    counted = fingerprint(whole.without_subset(150, 0))
    altered(file, lambda c: c["start"].update(trained_on=counted), signed=True)
    assert "other examples than those that are left out" in str(verify(file, data()).reason)
    altered(file, lambda c: c["start"].update(trained_on=counted, left_out=0), signed=True)
    rest = whole.without_subset(150, 0)
    assert "on the data that are counted" in str(verify(file, (rest.inputs, rest.targets)).reason)
    file.write_text(before)
    assert verify(file, data()).valid
    tensors, record = load_tensors(tmp_path / START)
    tensors["start/1.bias"] += 1e-3
    save_tensors(tmp_path / START, tensors, record)
    assert "its start has not the hash" in str(verify(tmp_path, data()).reason)


# --- symmetries -----------------------------------------------------------------------------------


def test_an_average_over_a_group_is_charged_and_invariant(tmp_path: Path) -> None:
    found = certify(TORCH_LINEAR, data(), config=FAST, symmetry="C(4)", folder=tmp_path)
    inputs, _ = data(5)
    turned = found.model(inputs.rot90(1, (2, 3)))
    assert torch.allclose(turned, found.model(inputs), atol=1e-5)
    assert found.record["bits"]["symmetries"] == math.log2(10)
    assert verify(tmp_path, data()).valid


def test_a_law_is_coded_in_eight_bits_an_amount() -> None:
    actions = [isotropy.affine(("rotation", "scale_x")), flip("horizontal")]
    amounts = {"rotation": 90.0, "scale_x": 0.0, "horizontal_flip": 0.3}
    coded = coded_law(augmentation_over(actions, start=amounts), (1, SIZE, SIZE))
    assert dict(coded.codes) == {"rotation": 128, "horizontal_flip": 77}
    found = {each.name: each.high for each in coded.augmentation().symmetries()}
    assert found == pytest.approx({"rotation": 180 * 128 / 255, "horizontal_flip": 77 / 255})
    assert coded.bits == pytest.approx(
        16 + math.log2(coded_names() + 1) + math.log2(math.comb(coded_names(), 2)) + math.log2(3)
    )


def coded_names() -> int:
    from isotropy.symmetry.actions.catalogue import known_names

    return len(known_names((1, SIZE, SIZE)))


def test_the_plain_network_is_certified_beside_the_averaged_one() -> None:
    config = replace(FAST, compare=True, epochs=2)
    found = certify(TORCH_LINEAR, data(), config=config, symmetry="C(4)")
    assert found.record["plain"]["bits"] > 0
    assert "symmetry" in found.page()


# --- the command line -----------------------------------------------------------------------------

WORDS = ("--grid", "dimension=10,20 step=0.5,1 beta=1 seed=0", "--model", "mlp:5", "--epochs", "3")


def bars_npz(folder: Path) -> str:
    from learn_runs import bars_file

    return str(bars_file(folder, count=300))


def test_certify_and_verify_in_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = bars_npz(tmp_path), str(tmp_path / "run")
    words = ("--data", source, "--device", "cpu", "--json")
    finished = run_here(capsys, "certify", *WORDS, *words, "--subset", "250", "--out", out)
    assert finished.status == 0
    record = json.loads(finished.stdout)
    assert {"bound", "train_error", "errors", "n", "delta", "kind", "dimension", "bits",
            "message_bits", "bounds", "test_error", "file"} <= set(record)  # fmt: skip
    assert (record["n"], record["test_error"]) == (250, None)
    checked = run_here(capsys, "verify", record["file"], *words)
    told = json.loads(checked.stdout)
    assert checked.status == 0 and told["valid"] and told["bound"] == record["bound"]
    other = run_here(capsys, "verify", record["file"], *words, "--subset", "200")
    assert other.status == 1
    assert json.loads(other.stdout)["valid"] is False
    assert (Path(out) / "report.html").read_text().count("Other inequalities") == 1


@pytest.mark.parametrize(
    ("shape", "model"), [((1, 8, 8), "oriented"), ((3, 8, 8), "pooled"), ((3, 6, 6), "mlp")]
)
def test_the_network_follows_from_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: tuple[int, ...], model: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    images = torch.rand(200, *shape, generator=generator) + labels.view(-1, 1, 1, 1)
    source, out = tmp_path / "images.npz", tmp_path / "run"
    np.savez(source, x_train=images.numpy(), y_train=labels.numpy())
    grid = ("--grid", "dimension=5 step=0.5 beta=1 seed=0", "--epochs", "1")
    words = ("--data", source, "--device", "cpu", "--out", out, "--json")
    assert run_here(capsys, "certify", *grid, *words).status == 0
    assert json.loads((out / CERTIFICATE).read_text())["network"]["name"] == model


FILE = """
import torch
from torch import nn

class Noisy(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs + torch.rand_like(inputs))

def normalised():
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

def random():
    return nn.Sequential(nn.Flatten(), Noisy(SIZE, 3))
""".replace("SIZE", str(SIZE**2))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--delta", "2"), "delta: expected a probability"),
        (("--model", "own.py:normalised"), "layer '2' is BatchNorm1d"),
        (("--model", "own.py:random"), "its predictions are random"),
        (("--train", "dimension=30"), "30 is not among the dimensions"),
        (("--group", "SO(2)"), "expected a finite group"),
        (("--subset", "9"), "too few for any entry of the grid"),
        (("--grid", "depth=3"), "unknown part of the grid 'depth'"),
        (
            ("--group", "C(4)", "--symmetries", "nowhere"),
            "expected one of --symmetries and --group",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    source = bars_npz(tmp_path)
    (tmp_path / "own.py").write_text(FILE)
    words = tuple(str(tmp_path / each) if each.startswith("own.py") else each for each in words)
    given = ("--data", source, "--out", str(tmp_path / "run"), "--quiet")
    finished = run_here(capsys, "certify", *WORDS, *given, *words)
    assert finished.status == 2
    assert sentence in finished.stderr
    assert finished.stderr.count("\n") == 1
