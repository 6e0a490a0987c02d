"""Settings of relaxed training: the precision that fully connected pathways start at."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.evidence.layers.settings import FREE_SHARE, RelaxConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.pathways.pathway import LayerShape
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer, options_for

EXAMPLES = 8


def free_precision(examples: int, **settings: float) -> float | None:
    return RelaxConfig(**settings).resolved(examples=examples, on_gpu=False).free_precision


def test_the_precision_of_free_pathways_grows_with_the_examples() -> None:
    assert 0 < FREE_SHARE < 1
    assert free_precision(100_000) == pytest.approx(FREE_SHARE * 100_000)
    assert free_precision(200_000) == pytest.approx(2 * FREE_SHARE * 100_000)
    for on_gpu in (False, True):
        config = RelaxConfig().resolved(examples=100_000, on_gpu=on_gpu)
        assert config.free_precision == pytest.approx(FREE_SHARE * 100_000)


def test_it_is_not_below_that_of_the_others() -> None:
    assert free_precision(3) == 1.0
    assert free_precision(3, prior_precision=5.0) == 5.0
    assert free_precision(100_000, prior_precision=1e6) == 1e6


def test_what_is_set_counts_even_if_it_is_low() -> None:
    assert free_precision(100_000, free_precision=0.01) == 0.01
    config = RelaxConfig(free_precision=3.0).resolved(examples=100_000, on_gpu=False)
    assert config.resolved(examples=10, on_gpu=False).free_precision == 3.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_precisions_that_make_no_sense_are_refused(value: float) -> None:
    with pytest.raises(CallerError, match="free precision: expected above 0"):
        RelaxConfig(free_precision=value).resolved(examples=10, on_gpu=False)


def test_settings_of_records_that_do_not_have_it_are_read() -> None:
    record = RelaxConfig(epochs=3).as_dict()
    assert RelaxConfig.from_dict(record) == RelaxConfig(epochs=3)
    del record["free_precision"]
    assert RelaxConfig.from_dict({**record, "unknown": 1}) == RelaxConfig(epochs=3)


# --- what starts at it ----------------------------------------------------------------------------


def trainer_of(*kinds: tuple[str, ...], **settings: object) -> Trainer:
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
    trainer = trainer_of(kinds, ("ffc",))
    found = trainer.prior.by_group()
    expected = {
        name: 40.0 if name.startswith("layer0.") and name.split(".")[2] in free else 2.0
        for name, _ in trainer.network.named_parameters()
    }
    assert found == pytest.approx(expected)
    steps = trainer.weight_steps
    decays = dict(zip(steps.names, steps.optimiser.decays.tolist(), strict=True))
    assert decays == pytest.approx({name: each / EXAMPLES for name, each in expected.items()})


def test_with_map_all_start_alike() -> None:
    trainer = trainer_of(("ffc", "conv"), objective="map")
    assert set(trainer.prior.by_group().values()) == {2.0}
