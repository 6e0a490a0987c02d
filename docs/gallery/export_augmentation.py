"""Take away what was learned: into JSON and back, into torchvision, into a program of its own."""

import json
import tempfile
from contextlib import suppress

import torch

import isotropy
from isotropy.data.readers import digits
from isotropy.data.variants import vary
from isotropy.networks.export.laws import as_torchvision, augmentation_from_law
from isotropy.networks.export.program import export_model
from isotropy.networks.zoo.backbones import mlp


def main(epochs: int = 20, examples: int = 500) -> dict[str, float]:
    train = vary(digits(), "rotated").train.subset(examples, seed=0)
    network = mlp(train.inputs.shape[1:], train.num_classes, hidden=50)
    config, action = isotropy.LearnConfig(epochs=epochs), isotropy.affine(("rotation",))
    result = isotropy.learn(network, train, actions=action, config=config)
    model, images, differences = result.model, train.inputs[:8], {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        law = json.loads(json.dumps(model.augmentation.law()))  # as in augmentation.json
        again = augmentation_from_law(law, shape=images.shape[1:])
        noise = model.noise(len(images))
        differences["json"] = again(images, noise) - model.augmentation(images, noise)
        # A program without this library, the same copies of every image in it.
        file, draw = f"{folder}/model.pt2", torch.Generator()
        export_model(model, images, file, generator=draw.manual_seed(1))
        noise = model.noise(1, generator=draw.manual_seed(1)).expand(len(images), -1, -1)
        differences["program"] = torch.export.load(file).module()(images) - model(images, noise)
        with suppress(isotropy.CallerError):  # torchvision may be missing; one copy of each image
            transform = as_torchvision(model.augmentation)
            noise = transform.noise(len(images))
            moved = model.augmentation(images, noise[:, None])[:, 0]
            differences["torchvision"] = transform.move(images, noise) - moved
    return {name: each.abs().max().item() for name, each in differences.items()}


if __name__ == "__main__":
    print("largest difference:", main())
