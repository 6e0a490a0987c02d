"""Rotated MNIST in miniature: masked pretraining, rows, a row that goes on, what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring_records import rotated_record
from torch import nn

from isotropy.checks import CallerError
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.runner import Job, read_table
from isotropy.experiments.thesis import rotated_mnist
from isotropy.experiments.thesis.masked_pretraining import (
    MaskedAutoencoder,
    PretrainingSettings,
    pretrain,
)
from isotropy.networks.zoo.image_networks import vit
from isotropy.workflows import learning

TABLE = read_table("rotated-mnist")
CPU = torch.device("cpu")
SMALL = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2, "batch_size": 16}


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return vit((1, 12, 12), 3, width=8, depth=1, heads=2)  # 9 patches of 4 × 4


def autoencoder() -> MaskedAutoencoder:
    return MaskedAutoencoder(transformer(), PretrainingSettings(masked=2 / 3, **SMALL))  # type: ignore[arg-type]


def test_patches_are_those_of_the_transformer() -> None:
    """Pixels by patch, times the kernel, are what the transformer's convolution gives."""
    model, images = autoencoder(), torch.rand(2, 1, 12, 12)
    projection = model.transformer.patches.projection
    tokens = model.patches(images) @ projection.weight.flatten(1).T + projection.bias
    torch.testing.assert_close(tokens, model.transformer.patches(images))


def test_hidden_patches_are_not_seen_and_alone_count() -> None:
    model, images = autoencoder().double(), torch.rand(2, 1, 12, 12, dtype=torch.float64)
    assert model.visible == 3
    order = torch.stack([torch.arange(9), torch.arange(9).flip(0)])
    predicted = model(images, order)
    changed = images.clone()
    changed[0, :, 4:] = 0.5  # patches 3 to 8, which the first image hides
    torch.testing.assert_close(model(changed, order), predicted)
    changed[0, :, :4] = 0.5
    assert not torch.allclose(model(changed, order)[0], predicted[0])
    torch.testing.assert_close(model(changed, order)[1], predicted[1])
    errors = (predicted - model.patches(images)).square()
    hidden = torch.cat([errors[0, 3:], errors[1, :6]])  # the second image shows its last three
    torch.testing.assert_close(model.loss(images, order), hidden.mean())


def test_tokens_return_to_their_places() -> None:
    """Which patches are seen decides; in which order they are written down does not."""
    model, images = autoencoder().double(), torch.rand(1, 1, 12, 12, dtype=torch.float64)
    first = torch.tensor([[4, 0, 7, 1, 2, 3, 5, 6, 8]])
    second = torch.tensor([[7, 4, 0, 8, 6, 5, 3, 2, 1]])
    torch.testing.assert_close(model(images, first), model(images, second))


def test_pretraining_learns_and_depends_on_the_seed_alone() -> None:
    stripes = torch.zeros(64, 1, 12, 12)
    stripes[::2, :, ::2] = 1.0
    stripes[1::2, :, :, ::2] = 1.0
    settings = PretrainingSettings(epochs=30, rate=1e-2, **SMALL)  # type: ignore[arg-type]
    networks = [transformer() for _ in range(2)]
    start = networks[0].head.weight.detach().clone()
    losses = [pretrain(each, stripes, settings, seed=1) for each in networks]
    assert losses[0] == losses[1] and len(losses[0]) == 30
    assert losses[0][-1] < 0.5 * losses[0][0]
    torch.testing.assert_close(networks[0].head.weight, start)
    other = pretrain(transformer(), stripes, replace(settings, epochs=1), seed=2)
    assert other[0] != losses[0][0]


def test_what_cannot_be_pretrained_is_refused() -> None:
    with pytest.raises(CallerError, match="expected a vision transformer, as model vit is, got"):
        pretrain(nn.Linear(2, 2), torch.zeros(4, 1, 12, 12), PretrainingSettings(), seed=0)
    with pytest.raises(CallerError, match="masked: expected a share above 0 and below 1"):
        PretrainingSettings(masked=1.0)
    with pytest.raises(CallerError, match="hides one or more of 9 patches"):
        MaskedAutoencoder(transformer(), PretrainingSettings(masked=0.01))


# -- rows ----------------------------------------------------------------------------------------


def test_rows_have_what_their_names_say() -> None:
    jobs = {job.row: job for job in rotated_mnist.jobs(TABLE, quick=False)}
    assert len(jobs) == 10 and jobs.keys() == TABLE["networks"].keys()
    for name, job in jobs.items():
        own = job.settings
        config = LearnConfig(**own["config"])
        config.check()
        assert config.ranges is not None
        turned = name.endswith(("augmented", "averaged"))
        assert config.ranges["rotation"] == (180.0 if turned else 0.0)
        assert (own["pretraining"] is not None) == ("pretrained" in name)
        assert own["symmetry"] == ("C(4)" if "c4" in name else "D(4)" if "d4" in name else None)
        assert own["averaged"] == (config.objective == "fixed") == ("averaged" in name)
        assert own["train_examples"] == 12_000 and job.seeds == (0, 1, 2)
    assert jobs["vit"].settings["config"] == jobs["vit-pretrained"].settings["config"]
    assert TABLE["published"]["finetuned MAE"] == 1.14 and len(TABLE["published"]) == 7


def tiny(name: str, **settings: Any) -> Job:
    job = next(job for job in rotated_mnist.jobs(TABLE, quick=True) if job.row == name)
    config = {**job.settings["config"], "epochs": 2, "batch_size": 20}
    own = {**job.settings, "train_examples": 40, "examples": 4, "config": config, **settings}
    if own["pretraining"]:
        own["pretraining"] = {**own["pretraining"], "epochs": 1, "batch_size": 20, **SMALL}
        own["model"] = "vit:8"
    return Job(name, (3,), own)


def test_built_quarter_turns_stay_exact_and_others_are_not() -> None:
    found = {}
    for name in ("convnet", "convnet-c4", "convnet-averaged"):
        (found[name],) = rotated_mnist.run(tiny(name, model="convnet:2"), CPU)
    assert found["convnet-c4"]["quarter_turns"]["error"] < 1e-12
    assert found["convnet"]["quarter_turns"]["error"] > 1e-9
    assert found["convnet"]["train_examples"] == 40 and found["convnet"]["test_examples"] == 1000
    # The average is the model, also before it is trained.
    assert found["convnet-averaged"]["rotation"]["error"] < found["convnet"]["rotation"]["error"]
    assert 0 <= found["convnet"]["test_error"] <= 100


@pytest.mark.slow
def test_a_pretrained_row_that_is_cut_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    (whole,) = rotated_mnist.run(tiny("vit-pretrained"), CPU)

    class Cut(Exception):
        pass

    def cut(*arguments: Any, **named: Any) -> None:
        raise Cut

    monkeypatch.setattr(learning, "_result", cut)
    job = tiny("vit-pretrained", unfinished=str(tmp_path))
    with pytest.raises(Cut):
        rotated_mnist.run(job, CPU)
    assert len(list(tmp_path.iterdir())) == 2, "weights after pretraining, and a run folder"
    monkeypatch.undo()
    monkeypatch.setattr(rotated_mnist, "pretrain", cut)  # is not done again
    (resumed,) = rotated_mnist.run(job, CPU)
    assert list(tmp_path.iterdir()) == []
    for name in ("test_error", "rotation", "quarter_turns", "pretraining_loss"):
        assert resumed[name] == whole[name], name


# -- what the records show -----------------------------------------------------------------------


def test_goals_are_of_filled_rows() -> None:
    records = [
        rotated_record("vit", 5.0),
        rotated_record("vit-pretrained", 2.0),
        rotated_record("vit-pretrained", 2.4, seed=1),
        rotated_record("convnet", 3.0),
        rotated_record("convnet-c4", 1.0, 1e-12),
        rotated_record("convnet-d4", 1.5, 1e-3),
        rotated_record("convnet-averaged", 3.1),
    ]
    told = {what.partition(" (")[0]: holds for what, holds in rotated_mnist.goals(records).items()}
    assert told == {
        "masked pretraining lowers the transformer's test error": True,
        "quarter turns built in lower the test error": True,
        "an average over all angles lowers the test error": False,
        "the best pretrained transformer is as good as the best network that was built": False,
        "the best pretrained transformer is below the published G-CNN, 2.28 %": True,
        "the best network that was built is below the published E(2)-CNN, 0.68 %": False,
        "quarter turns that are built in are exact after training": False,
    }
    assert any("2.20 %" in line for line in rotated_mnist.summary(records))
    assert rotated_mnist.goals([]) == {}
