"""Training of relaxed networks: what the data does not need is switched off, the rest is kept."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import replace
from itertools import islice
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from isotropy.evidence.estimate import estimate_run
from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.layers.structure import became, layer_structures
from isotropy.evidence.layers.training import pathway_batches, structures
from isotropy.evidence.predictive import plain_scores
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical, likelihood_named
from isotropy.networks.pathways.pathway import LayerShape
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer, options_for

SIZE = 6


def _network(seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    shape = LayerShape((1, SIZE, SIZE), (4, SIZE, SIZE))
    head = nn.Linear(4, 2)
    with torch.no_grad():
        head.weight.normal_(0, 0.5, generator=generator)
        head.bias.zero_()
    return nn.Sequential(
        OrderedDict(
            layer=RelaxedLayer.new(("ffc", "conv"), shape, generator=generator),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=head,
        )
    )


def _stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Stripes along one axis or the other, anywhere: translations leave the label unchanged."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    phases = torch.randint(2, (count,), generator=generator)
    waves = (-1.0) ** (torch.arange(SIZE)[None] + phases[:, None])
    images = waves[:, None, None, :].expand(count, 1, SIZE, SIZE)
    images = torch.where(labels[:, None, None, None] == 0, images, images.mT)
    return images + 0.3 * torch.randn(images.shape, generator=generator), labels


def _corners(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """A bright pixel in the left or the right half: no circular convolution can tell."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    rows = torch.randint(SIZE, (count,), generator=generator)
    columns = torch.randint(SIZE // 2, (count,), generator=generator) + labels * (SIZE // 2)
    images = 0.1 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
    images[torch.arange(count), 0, rows, columns] += 3
    return images, labels


def _trained(data: tuple[Tensor, Tensor], **settings: object) -> Trainer:
    config = RelaxConfig(
        **{"epochs": 40, "batch_size": 40, "weight_rate": 0.02, **settings}  # type: ignore[arg-type]
    )
    config = config.resolved(examples=len(data[0]), on_gpu=False)
    trainer = Trainer(_network(), Categorical(), config, *data)
    for _ in range(config.epochs):
        trainer.run_epoch()
    return trainer


@pytest.mark.slow
def test_layers_become_convolutions_where_position_does_not_matter() -> None:
    trainer = _trained(_stripes(300, 0), epochs=100, update_every=2, prior_rate=0.2)
    (layer,), evidence = structures(trainer)
    assert layer.became == "conv" and layer.relative["conv"] > 0.98
    assert layer.pathways["ffc"].contribution < 0.05
    assert trainer.score(*_stripes(200, 1)).accuracy > 0.95
    assert torch.isfinite(torch.tensor(evidence))
    kept = {kind: use.contribution for kind, use in layer.pathways.items()}
    assert trainer.network.layer.contributions == kept


def test_layers_keep_the_other_pathway_where_position_matters() -> None:
    trainer = _trained(_corners(300, 0))
    (layer,), _ = structures(trainer)
    assert layer.relative["ffc"] > 0.1
    assert trainer.score(*_corners(200, 1)).accuracy > 0.9


def test_precisions_wait_until_the_network_has_begun_to_learn() -> None:
    """Labels without any rule: nothing is learned in two epochs, and nothing is switched off."""
    images, _ = _stripes(60, 0)
    labels = torch.randint(2, (60,), generator=torch.Generator().manual_seed(3))
    often = {"burn_in": 0, "update_every": 1, "free_precision": 1.0}
    still = _trained((images, labels), epochs=2, weight_rate=1e-5, **often)
    assert not still.hyper.has_learned and set(still.prior.by_group().values()) == {1.0}
    moved = _trained(_stripes(60, 0), epochs=30, **often)
    assert moved.hyper.has_learned and len(set(moved.prior.by_group().values())) > 1


def test_a_regression_of_small_targets_learns_its_precisions_and_noise() -> None:
    images, labels = _stripes(60, 0)
    targets = 0.1 * (2.0 * labels[:, None] - 1) * torch.tensor([[1.0, -1.0]])
    config = RelaxConfig(epochs=4, burn_in=1, update_every=1, free_precision=1.0)
    config = config.resolved(examples=60, on_gpu=False)
    likelihood = likelihood_named("gaussian")
    before = [each.detach().clone() for each in likelihood.parameters()]
    trainer = Trainer(_network(), likelihood, config, images, targets)
    for _ in range(4):
        trainer.run_epoch()
    assert len(set(trainer.prior.by_group().values())) > 1
    assert all(a != b for a, b in zip(before, likelihood.parameters(), strict=True))
    outputs = trainer.network.eval()(images).detach()
    density = torch.distributions.Normal(outputs, likelihood.noise).log_prob(targets).sum(1).mean()
    assert trainer.score(images, targets).log_likelihood == pytest.approx(float(density), rel=1e-5)


def test_curvature_that_is_not_finite_is_named() -> None:
    images, labels = _stripes(60, 0)
    images[0] = torch.inf
    config = RelaxConfig(epochs=1, curvature_examples=59).resolved(examples=60, on_gpu=False)
    trainer = Trainer(_network(), Categorical(), config, images, labels)
    with pytest.raises(NotFiniteError, match="is not finite"):
        trainer.evidence.fit_of_few(pathway_batches(trainer))


def test_with_map_precisions_stay() -> None:
    trainer = _trained(_stripes(60, 0), objective="map", epochs=3, prior_precision=2.0)
    assert set(trainer.prior.by_group().values()) == {2.0}
    decays = trainer.weight_steps.optimiser.decays
    torch.testing.assert_close(decays, torch.full_like(decays, 2.0 / 60))


def test_precisions_beyond_ten_million_stay_finite() -> None:
    data = _stripes(100, 0)
    config = RelaxConfig(epochs=4, burn_in=1).resolved(examples=100, on_gpu=False)
    trainer = Trainer(_network(), Categorical(), config, *data)
    with torch.no_grad():
        for number, name in enumerate(trainer.prior.groups):
            if ".ffc." in name:
                trainer.prior.log_precisions[number] = 25.0  # 7·10¹⁰
    trainer.hyper.write_decays()
    for _ in range(4):
        trainer.run_epoch()
    (layer,), evidence = structures(trainer)
    assert torch.isfinite(torch.tensor(evidence))
    assert layer.pathways["ffc"].weight_norm < 1e-8 and layer.became == "conv"
    assert all(torch.isfinite(each).all() for each in trainer.network.parameters())


def test_structures_follow_the_definitions() -> None:
    """γ = Σ h/(h + δ) from dense eigenvalues of each block, normalised and relative."""
    data = _stripes(30, 0)
    config = RelaxConfig(epochs=1, prior_precision=0.7).resolved(examples=30, on_gpu=False)
    trainer = Trainer(_network().double(), Categorical(), config, data[0].double(), data[1])
    fit = trainer.evidence.fit(pathway_batches(trainer), values_only=True)
    (layer,) = layer_structures(trainer.network, trainer.evidence, fit)
    names = {
        "conv": ["layer.pathways.conv.convolution.weight"],
        "ffc": ["layer.pathways.ffc.readout.weight", "layer.pathways.ffc.spread.weight"],
    }
    normalised = {}
    for kind, own in names.items():
        values = torch.cat([fit.spectra[name].eigenvalues() for name in own])
        parameters = sum(trainer.network.get_parameter(name).numel() for name in own)
        assert len(values) == parameters == layer.pathways[kind].parameters
        gamma = float((values / (values + 0.7)).sum())
        assert layer.pathways[kind].effective == pytest.approx(gamma)
        normalised[kind] = gamma / parameters
        squared = sum(float(trainer.network.get_parameter(n).detach().square().sum()) for n in own)
        assert layer.pathways[kind].weight_norm == pytest.approx(squared)
        assert layer.pathways[kind].prior_precision == pytest.approx(0.7)
    share = normalised["conv"] / (normalised["conv"] + normalised["ffc"])
    assert layer.relative["conv"] == pytest.approx(share)


def test_what_a_layer_became_in_words() -> None:
    little = {"conv": 0.99, "ffc": 0.05}
    assert became({"conv": 0.95, "ffc": 0.05}, little) == "conv"
    assert became({"ffc": 0.3, "conv": 0.7}, little) == "conv + ffc"
    assert became({"ffc": 0.01, "conv": 0.99}, {"conv": 0.5, "ffc": 0.85}) == "ffc + conv"
    assert became({"ffc": 0.0, "conv": 0.0}, little) == "off"


def test_eigenvalues_alone_give_the_same_evidence() -> None:
    data = _stripes(20, 0)
    config = RelaxConfig(epochs=1).resolved(examples=20, on_gpu=False)
    trainer = Trainer(_network(), Categorical(), config, *data)
    alone, full = (
        trainer.evidence.value(
            trainer.evidence.fit(pathway_batches(trainer), values_only=values_only)
        )
        for values_only in (True, False)
    )
    torch.testing.assert_close(alone, full)


def test_some_examples_stand_for_all() -> None:
    """Data that is the same ten times over: a tenth of it has the same evidence."""
    images, labels = _stripes(20, 0)
    tenfold = images.repeat(10, 1, 1, 1).double(), labels.repeat(10)
    config = RelaxConfig(epochs=1).resolved(examples=200, on_gpu=False)
    trainer = Trainer(_network().double(), Categorical(), config, *tenfold)
    every = trainer.evidence.fit(pathway_batches(trainer))
    some = replace(trainer.evidence.fit(islice(pathway_batches(trainer), 0, 1)), stands_for=200)
    assert some.count == config.curvature_batch == 100
    torch.testing.assert_close(trainer.evidence.value(some), trainer.evidence.value(every))
    assert sum(len(batch.targets) for batch in pathway_batches(trainer, limit=7)) == 7


def test_a_run_is_repeated_by_its_seed_and_augmentation_needs_images() -> None:
    def weights(seed: int) -> Tensor:
        trainer = _trained(_stripes(50, 0), epochs=2, seed=seed, augmentation="flips")
        return torch.cat([each.flatten() for each in trainer.network.parameters()])

    torch.testing.assert_close(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_scores_are_those_of_the_network() -> None:
    images, labels = _stripes(30, 0)
    network = copy.deepcopy(_network())
    outputs = network(images)
    scores = plain_scores(network, Categorical(), images, labels)
    assert scores.accuracy == pytest.approx(float((outputs.argmax(1) == labels).float().mean()))
    wanted = -nn.functional.cross_entropy(outputs, labels)
    assert scores.log_likelihood == pytest.approx(float(wanted.detach()), rel=1e-5)


@pytest.mark.parametrize("augmentation", ["none", "flips"])
def test_a_batch_in_parts_learns_the_same(augmentation: str) -> None:
    """Draws are those of the whole batch, and gradients of parts add up: rounding apart."""
    data = (_stripes(60, 0)[0].double(), _stripes(60, 0)[1])
    config = RelaxConfig(epochs=12, batch_size=6, burn_in=0, update_every=1, weight_rate=0.1,
                         augmentation=augmentation)  # fmt: skip
    found = []
    for micro_batch in (None, 4):
        schedule = replace(config, micro_batch=micro_batch).resolved(examples=60, on_gpu=False)
        trainer = Trainer(_network().double(), Categorical(), schedule, *data)
        assert trainer.weight_steps.micro_batch == (micro_batch or schedule.batch_size)
        rows = [trainer.run_epoch() for _ in range(12)]
        found.append((rows, dict(trainer.network.named_parameters())))
    (whole, weights), (parts, others) = found
    for expected, row in zip(whole, parts, strict=True):
        assert row.train_loss == pytest.approx(expected.train_loss, rel=1e-9)
        assert (row.log_evidence is None) == (expected.log_evidence is None)
        if expected.log_evidence is not None:
            assert row.log_evidence == pytest.approx(expected.log_evidence, rel=1e-7)
    assert whole[-1].log_evidence is not None
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augmentation", ["none", "flips"])
def test_a_captured_run_is_the_run(augmentation: str) -> None:
    device, weights = torch.device("cuda"), []
    for captured in (False, True):
        config = RelaxConfig(epochs=8, batch_size=6, burn_in=1, weight_rate=0.05, captured=captured,
                             precision="float32", augmentation=augmentation)  # fmt: skip
        images, labels = (each.to(device) for each in _stripes(60, 0))
        schedule = config.resolved(examples=60, on_gpu=True)
        trainer = Trainer(_network().to(device), Categorical(), schedule, images, labels)
        for _ in range(8):
            trainer.run_epoch()
        function = trainer.weight_steps._captured
        assert (function is not None) == captured
        assert function is None or (function._graph is not None and function.failure is None)
        weights.append(
            torch.cat([each.detach().flatten() for each in trainer.network.parameters()])
        )
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("few", [0, 20])
def test_trying_a_run_out_leaves_it_as_it_was(few: int) -> None:
    """Passes are of as many examples as hyper steps have, which are counted from the burn-in on.

    The last one, which results are from, has all.
    """
    data = _stripes(60, 0)
    config = RelaxConfig(epochs=5, burn_in=1, update_every=2, curvature_batch=10, weight_rate=0.02,
                         curvature_examples=few).resolved(examples=60, on_gpu=False)  # fmt: skip
    tried, plain = (Trainer(_network(), Categorical(), config, *data) for _ in range(2))
    with mock.patch("isotropy.evidence.estimate._timed", lambda _, task: (task(), (1.0, 0.0))[1]):
        found = estimate_run(tried, test_examples=30)
    assert found.weight_steps == 5 * 2  # two batches an epoch
    # After epochs 1, 3 and 5: batches of ten at a tenth of a second, and the rest of the first.
    last = 0.1 * 60 / 10 + 0.9
    assert found.evidence == pytest.approx(3 * (0.1 * (few or 60) / 10 + 0.9) + last)
    rows = [[trainer.run_epoch().as_dict() for _ in range(5)] for trainer in (tried, plain)]
    for one, other in zip(*rows, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


# --- the precision that pathways start at ---------------------------------------------------------

EXAMPLES = 8


def started(*kinds: tuple[str, ...], **settings: object) -> Trainer:
    """Of a network with a layer of each of these pathways."""
    shape = LayerShape((4, 4, 4), (4, 4, 4))
    layers = OrderedDict(
        (f"layer{number}", RelaxedLayer.new(each, shape, options_for(each)))
        for number, each in enumerate(kinds)
    )
    network = nn.Sequential(
        layers | OrderedDict(flat=nn.Flatten(), head=nn.Linear(64, 2))  # type: ignore[operator]
    )
    config = RelaxConfig(free_precision=40.0, prior_precision=2.0)
    config = replace(config, **settings).resolved(examples=EXAMPLES, on_gpu=False)  # type: ignore[arg-type]
    images, labels = torch.rand(EXAMPLES, 4, 4, 4), torch.arange(EXAMPLES) % 2
    return Trainer(network, Categorical(), config, images, labels)


@pytest.mark.parametrize(
    ("kinds", "free"),
    [
        (("ffc", "conv"), {"ffc"}),
        (("conv", "fc", "sfc", "ffc"), {"fc", "sfc", "ffc"}),
        (("sfc", "gconv"), {"sfc"}),
        (("ffc",), set()),
        (("fc", "ffc"), set()),
        (("conv",), set()),
        (("conv", "sconv"), set()),
        (("gconv", "gconv-full"), set()),
    ],
    ids=lambda each: "+".join(each) if isinstance(each, tuple) else "",
)
def test_pathways_beside_more_symmetric_ones_start_at_it(
    kinds: tuple[str, ...], free: set[str]
) -> None:
    """Weights and biases, in this layer and not in another one, and in the optimiser too."""
    trainer = started(kinds, ("ffc",))
    found = trainer.prior.by_group()
    expected = {
        name: 40.0 if name.startswith("layer0.") and name.split(".")[2] in free else 2.0
        for name, _ in trainer.network.named_parameters()
    }
    assert found == pytest.approx(expected)
    steps = trainer.weight_steps
    decays = dict(zip(steps.names, steps.optimiser.decays.tolist(), strict=True))
    assert decays == pytest.approx({name: each / EXAMPLES for name, each in expected.items()})


def test_with_map_free_pathways_have_the_precision_that_is_given() -> None:
    given = started(("ffc", "conv"), objective="map").prior.by_group()
    assert {round(v) for n, v in given.items() if "ffc" in n} == {40}
    assert {round(v) for n, v in given.items() if "ffc" not in n} == {2}


def test_with_map_all_are_alike_unless_told() -> None:
    config = RelaxConfig(prior_precision=2.0, objective="map")
    assert config.resolved(examples=10_000, on_gpu=False).free_precision == 2.0
