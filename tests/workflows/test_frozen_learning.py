"""`learn` with a frozen backbone: the last layer's evidence over averaged features, and hand-over.

The backbone is a small network trained here on other examples. Oracle of the evidence: the dense
Gauss–Newton matrix of the last layer through the whole network, one example and copy at a time.
With one linear layer, no bias and Gaussian noise KFAC is exact.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import isotropy
from isotropy.checks import CallerError
from isotropy.cli.main import cli
from isotropy.data.labelled import Split
from isotropy.data.readers import digits
from isotropy.data.variants import vary
from isotropy.evidence.predictive import score
from isotropy.evidence.search import trials
from isotropy.evidence.search.trials import Trials, output_gradients
from isotropy.evidence.settings import LearnConfig, stream
from isotropy.networks.averaging import averaged_features
from isotropy.networks.averaging.averaged_features import spread_evenly

FEW = LearnConfig(epochs=3, samples=3, test_samples=2, search=False, seed=4)


class Small(nn.Module):
    """Two convolutions with normalisation, and a last layer."""

    def __init__(self, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(64, outputs, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images))


@pytest.fixture(scope="module")
def backbone() -> Small:
    """Trained to tell digits from 5 on from others, on examples that no test here has."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Small(10)
        data = vary(digits(), "rotated").train
        inputs, labels = data.inputs[1000:], data.targets[1000:]
        optimiser = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(6):
            for part in torch.randperm(len(inputs)).split(50):
                optimiser.zero_grad()
                nn.functional.cross_entropy(network(inputs[part]), labels[part]).backward()
                optimiser.step()
    network.zero_grad()
    return network.eval()


def some(variant: str, count: int) -> Split:
    """The first examples of a variant of the digits, below the first thousand."""
    data = vary(digits(), variant)
    own = data.train
    train = replace(own, inputs=own.inputs[:count], targets=own.targets[:count])
    return Split(train, data.test.subset(60, 0), ())


def test_the_evidence_is_that_of_the_last_layer():
    torch.manual_seed(1)
    inputs, targets = torch.rand(12, 1, 8, 8).double(), torch.randn(12, 2).double()
    result = isotropy.learn(
        Small(2, bias=False).double(), (inputs, targets), freeze="backbone", config=FEW,
        actions=isotropy.affine(("rotation", "translation_x")),
    )  # fmt: skip
    trainer = result.trainer
    network, model = trainer.network.eval(), trainer.model
    drawn = model.noise(12, generator=stream(4, "features"))  # one part for all examples
    noise = spread_evenly(model.augmentation, drawn)
    weight = network.fc.weight.detach()

    def outputs(weights: Tensor, example: Tensor, own: Tensor) -> Tensor:
        copies = model.augmentation(example[None], own[None])[0]
        each = [functional_call(network, {"fc.weight": weights}, (copy[None],)) for copy in copies]
        return torch.cat(each).mean(0)

    scale = float(trainer.likelihood.noise) ** 2
    curvature, likelihood = torch.zeros(128, 128).double(), 0.0
    for example, target, own in zip(trainer.inputs, trainer.targets, noise, strict=True):
        jacobian = jacrev(outputs)(weight, example, own).detach().flatten(1)
        curvature += jacobian.mT @ jacobian / scale
        residual = (outputs(weight, example, own) - target).detach()
        likelihood -= float(residual.square().sum()) / (2 * scale) + math.log(2 * math.pi * scale)
    (precision,) = trainer.prior.by_group().values()
    eye = torch.eye(128).double()
    determinant = float(torch.logdet(curvature + precision * eye)) - 128 * math.log(precision)
    expected = likelihood - (precision * float(weight.square().sum()) + determinant) / 2
    assert result.log_evidence == pytest.approx(expected, rel=1e-6)
    assert set(trainer.prior.group_of) == {"fc.weight"}


def test_ranges_follow_the_gradient_of_this_evidence(backbone: Small):
    """By differences of the evidence as the ranges move, with the same copies."""
    config = LearnConfig(epochs=1, samples=3, test_samples=1, search=False, curvature_batch=50,
                         start={"rotation": 30.0})  # fmt: skip
    network = copy.deepcopy(backbone).double()
    result = isotropy.learn(network, some("rotated", 50), freeze="backbone", config=config,
                            actions=isotropy.affine(("rotation",)))  # fmt: skip
    trainer = result.trainer
    (ranges,) = trainer.ranges

    def batch(graph: bool) -> list:
        return list(trainer.orbit_batches("ranges", graph=graph, of_epoch=0))

    fit = trainer.evidence.fit(each._replace(rows=each.rows.detach()) for each in batch(True))
    (found,) = trainer.evidence.gradient(fit, batch(True), trainer.ranges)
    values = []
    for change in (1e-6, -2e-6):
        with torch.no_grad():
            ranges.add_(change)
        own = [each._replace(rows=each.rows.detach()) for each in batch(True)]
        values.append(float(trainer.evidence.value(trainer.evidence.fit(own)).detach()))
    assert float(found.sum()) == pytest.approx(-(values[0] - values[1]) / 2e-6, rel=1e-3)
    assert all(each.grad is None for each in trainer.network.body.parameters())


def test_scores_are_those_of_the_whole_network(backbone: Small):
    config = LearnConfig(epochs=2, samples=3, objective="fixed", ranges={"rotation": 40.0},
                         test_samples=5)  # fmt: skip
    split = some("rotated", 40)
    result = isotropy.learn(backbone, split, freeze="backbone", config=config,
                            actions=isotropy.affine(("rotation",)))  # fmt: skip
    trainer = result.trainer
    assert trainer.features is not None
    inputs, targets = split.test.inputs, split.test.targets
    own = trainer.score(inputs, targets)
    slow = score(trainer.model, trainer.likelihood, inputs, targets, copies=5)
    assert own.accuracy == slow.accuracy
    assert own.log_likelihood == pytest.approx(slow.log_likelihood, rel=1e-5)


def test_trials_are_those_of_the_tangent_kernel(backbone: Small):
    split = some("rotated", 30)
    result = isotropy.learn(backbone, split, freeze="backbone", config=FEW,
                            actions=isotropy.affine(("rotation",)))  # fmt: skip
    trainer = result.trainer
    trials = Trials(trainer.network, isotropy.affine(("rotation",)), trainer.config,
                    (trainer.inputs, trainer.targets))  # fmt: skip
    trials.is_bfloat16 = False
    rows, amounts = trainer.inputs[:6], {"rotation": 30.0}
    own = trials._gradients(amounts, 0, rows)
    augmentation = trials._augmentation(amounts)
    copies = augmentation.copies(trials.copies(augmentation, amounts))
    drawn = augmentation.noise(6, copies.count, generator=stream(4, "trial", 0))
    rows = augmentation(rows, spread_evenly(augmentation, drawn)).flatten(0, 1).detach()
    slow = output_gradients(trials.network, rows, copies, trials.direction)
    torch.testing.assert_close(own @ own.mT, slow @ slow.mT, rtol=1e-4, atol=1e-4)
    before = dict(trainer.network.named_parameters())
    for name, value in trials.network.named_parameters():
        if name.startswith("body"):
            assert torch.equal(value, before[name])  # frozen layers are not scaled


@pytest.mark.parametrize(("variant", "fewest"), [("rotated", 90), ("original", 0)])
def test_searches_in_bfloat16_find_what_those_in_float32_find(
    backbone: Small, variant: str, fewest: float, monkeypatch: pytest.MonkeyPatch
):
    """Ranges, verdicts and gains; log densities differ by less than other copies change them."""
    monkeypatch.setattr(trials, "COPIES_OF_FROZEN", (8, 8))
    records = []
    for given in (False, True):
        monkeypatch.setattr(averaged_features, "has_bfloat16", lambda *_, own=given: own)
        config = LearnConfig(epochs=4, samples=4, test_samples=2, search_examples=120)
        split, rotation = some(variant, 120), isotropy.affine(("rotation",))
        result = isotropy.learn(backbone, split, freeze="backbone", actions=rotation,
                                config=config, verdicts=2)  # fmt: skip
        records.append(result.record)
    slow, fast = (record["search"] for record in records)
    assert (slow["precision"], fast["precision"]) == ("float32", "bfloat16")
    assert fast["log_predictive"] != slow["log_predictive"]
    assert abs(fast["log_predictive"] - slow["log_predictive"]) < slow["seed_error"]
    one, other = (each["symmetries"]["rotation"] for each in (slow, fast))
    assert other["gain_nats"] == pytest.approx(one["gain_nats"], abs=slow["seed_error"])
    assert other["amount"] == pytest.approx(one["amount"], rel=0.05)
    assert other["probability"] == pytest.approx(one["probability"], abs=0.05)
    assert one["amount"] >= fewest
    words = [record["verdicts"][0]["verdict"] for record in records]
    assert words[0] == words[1]


@pytest.mark.slow
def test_rotated_digits_have_rotations_and_the_run_is_handed_over(backbone: Small, tmp_path: Path):
    """A network for 4 classes gets a new head; learn → resume → load → measure → predictive."""
    network = nn.Sequential(backbone.body, nn.Linear(64, 4))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    split, rotation = some("rotated", 300), isotropy.affine(("rotation",))
    said: list[str] = []
    result = isotropy.learn(network, split, freeze="backbone", actions=rotation, verdicts=2,
                            folder=tmp_path / "run", remark=said.append)  # fmt: skip
    record = result.record
    assert result.symmetries[0].high >= 90
    assert record["verdicts"][0]["verdict"] in ("present", "partial")
    assert record["batch_norm"]["training"] == "running statistics"
    assert record["constants"]["0.0.weight"] == "frozen" and "1.weight" not in record["constants"]
    assert any(note.startswith("frozen:") for note in record["notes"]) and said
    assert result.test_accuracy > 0.3
    after = result.trainer.network.state_dict()
    body = [name for name in before if name.startswith("0.")]
    assert all(torch.equal(before[name], after[name]) for name in body)
    assert all(torch.equal(before[name], network.state_dict()[name]) for name in before)

    again = isotropy.learn(network, split, freeze="backbone", actions=rotation, verdicts=2,
                           folder=tmp_path / "run", resume=True)  # fmt: skip
    assert again.log_evidence == pytest.approx(result.log_evidence, rel=1e-9)
    loaded = isotropy.load(tmp_path / "run", network=network, actions=rotation)
    torch.testing.assert_close(loaded(split.test.inputs), result.model(split.test.inputs))
    measured = isotropy.measure(loaded, split.test, actions=rotation)
    assert measured.record
    probabilities = result.predictive().probabilities(split.test.inputs[:5])
    torch.testing.assert_close(probabilities.sum(1), torch.ones(5))


@pytest.mark.parametrize("config", [
    FEW,
    LearnConfig(epochs=2, samples=2, search=False, evidence="elbo"),
    LearnConfig(epochs=1, samples=2, search=False, objective="augerino"),
    LearnConfig(epochs=1, samples=2, search=False, bound="function-space"),
    LearnConfig(epochs=1, samples=2, search=False, curvature="last-layer-ggn"),
    LearnConfig(epochs=1, samples=2, objective="fixed", ranges={"rotation": 20.0}),
])  # fmt: skip
def test_every_objective_leaves_the_backbone_alone(backbone: Small, config: LearnConfig):
    result = isotropy.learn(backbone, some("original", 40), freeze="backbone", config=config,
                            actions=isotropy.affine(("rotation",)))  # fmt: skip
    after = result.trainer.network.state_dict()
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, after[name]) or name.startswith("fc")
    assert not torch.equal(backbone.fc.weight, after["fc.weight"])


def test_a_pattern_leaves_layers_between_to_be_trained(backbone: Small):
    result = isotropy.learn(backbone, some("original", 40), freeze="body.0.*,body.1.*", config=FEW,
                            actions=isotropy.affine(("rotation",)))  # fmt: skip
    assert result.trainer.features is None
    assert set(result.trainer.prior.group_of) >= {"body.3.weight", "fc.weight"}
    assert not any(name.startswith(("body.0", "body.1")) for name in result.trainer.prior.group_of)
    after = result.trainer.network
    assert torch.equal(after.body[1].running_mean, backbone.body[1].running_mean)
    assert not torch.equal(after.body[4].running_mean, backbone.body[4].running_mean)
    assert result.record["batch_norm"]["held"] == ["body.1"]


class Unsteady(Small):
    def forward(self, images: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(self.body(images), 0.5, training=True))


@pytest.mark.parametrize(
    ("network", "freeze", "message"),
    [
        (Small(10), "stem.*", r"matches nothing; there are body\.\*, fc\.\*"),
        (Small(10), "*", "left to train"),
        (nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten()), "backbone", "ends in '1'"),
        (Unsteady(10), "backbone", "the same outputs every time in evaluation mode"),
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), Small(10)), "backbone", "'0'"),
    ],
)
def test_refusals(network: nn.Module, freeze: str, message: str):
    with pytest.raises(CallerError, match=message):
        isotropy.learn(network, some("original", 20), freeze=freeze, config=FEW)


def run(words: list[str]) -> None:
    cli.main(words, standalone_mode=False, obj="isotropy")


FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                         nn.Linear(256, 1000))
"""


def test_the_command_line(tmp_path: Path):
    """A file whose network has classes of its own, and a run folder of such a run again."""
    code = tmp_path / "nets.py"
    code.write_text(FACTORY, encoding="utf-8")
    first, second = tmp_path / "first", tmp_path / "second"
    few = ["--subset", "60", "--epochs", "2", "--samples", "2", "--test-samples", "2", "--quiet",
           "--no-search", "--generators", "rotation"]  # fmt: skip
    own = ["--model", f"{code}:make", "--freeze", "backbone"]
    may = ["--code", f"{code}:make", "--quiet"]
    run(["learn", *few, *own, "--out", str(first)])
    run(["learn", "--resume", str(first), *may])
    measured = ["--subset", "20", "--out", str(tmp_path / "measured")]
    cli.main(
        ["measure", "--model", str(first), *measured, *may], standalone_mode=False, obj="isotropy"
    )
    again = ["--model", str(first), "--freeze", "backbone", "--out", str(second)]
    run(["learn", *few, *again, *may])
    one, two = (isotropy.load(folder).network for folder in (first, second))
    assert one[4].out_features == two[4].out_features == 10
    assert torch.equal(one[0].weight, two[0].weight)
