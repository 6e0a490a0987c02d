"""Learn a symmetry of digits, build it into a network, measure that it is there: about a minute."""

import torch
from torch import nn

import isotropy
from isotropy.data.readers import digits
from isotropy.data.variants import vary


def trained(network: nn.Module, data: isotropy.LabelledData, epochs: int) -> nn.Module:
    optimiser, order = torch.optim.Adam(network.parameters(), lr=1e-3), torch.Generator()
    for _ in range(epochs):
        for batch in torch.randperm(len(data), generator=order.manual_seed(0)).split(25):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(network(data.inputs[batch]), data.targets[batch])
            loss.backward()
            optimiser.step()
    return network.eval()


def main(epochs: int = 30, examples: int = 2000) -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    split = vary(digits(), "rotated")
    train, test, told = split.train.take(torch.arange(examples)), split.test, {}
    small = nn.Sequential(nn.Flatten(), nn.Linear(784, 50), nn.Tanh(), nn.Linear(50, 10))
    config = isotropy.LearnConfig(epochs=epochs)
    few, turns = train.take(torch.arange(min(300, examples))), isotropy.affine(("rotation",))
    learned = isotropy.learn(small, few, actions=turns, config=config)
    print(*(f"{each['name']}: {each['verdict']}" for each in learned.record["verdicts"]))
    plain = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    print(isotropy.build(plain, learned).sentence)
    built = isotropy.build(plain, learned, group="C(4)")
    for name, network in {"plain": plain, built.sentence: built.model}.items():
        model = trained(network, train, epochs)
        right = (model(test.inputs).argmax(1) == test.targets).double().mean()
        turned = model(test.inputs.rot90(1, (2, 3))).argmax(1) == model(test.inputs).argmax(1)
        told[name] = (float(right), 1 - float(turned.double().mean()))
        error = isotropy.measure(model, test.inputs[:50], turns).record["actions"][0]["error"]
        print(f"{name} {right:.1%} right, a quarter turn changes {told[name][1]:.1%}, "
              f"error under rotation {error:.2g}")  # fmt: skip
    return told


if __name__ == "__main__":
    main()
