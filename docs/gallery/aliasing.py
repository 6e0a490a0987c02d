"""Why networks lose translations: what sampling folds onto low frequencies moves the wrong way.

Theorem 4.1 of the Lie derivative paper, corrected: sampling an image with Fourier coefficients H_n
takes n to n′ = Alias(n), and a shift along v has ‖L‖²/dim = (2π)² Σ_n′ |Σ_n v·(n′ − n) H_n|². All n
that meet in one n′ interfere. Behind a nonlinearity the H_n are those of σ(image) between pixels;
a ReLU has them without end, 64 are taken. MaxPool2d(1, 2) keeps every second pixel, no more.
"""

import torch
from matplotlib.figure import Figure
from torch import Tensor, fft, nn

import isotropy


def closed_form(fine: Tensor) -> Tensor:  # ‖L‖²/dim of every 16th pixel, for v = (½, 0)
    sizes = fine.shape[-1], fine.shape[-1] // 16
    n, alias = (fft.fftfreq(m, 1 / m) * (torch.arange(m) != m / 2) for m in sizes)
    terms = (alias.repeat(16) - n) * fft.fft2(fine, norm="forward") * torch.pi
    met = terms.unflatten(-1, (16, -1)).sum(-2).unflatten(-2, (16, -1)).sum(-3)
    return met.abs().square().sum((1, 2, 3)).mean()


def main(epochs: int = 0, examples: int = 8) -> Figure:
    shift = isotropy.affine(("translation_x",), interpolation="fourier")
    figure, n = Figure((12, 4), layout="constrained"), fft.fftfreq(128, 1 / 128).abs()
    noise = torch.randn(examples, 1, 128, 128, generator=torch.Generator().manual_seed(0)).double()
    for number, layer in enumerate((nn.MaxPool2d(1, 2), nn.GELU(), nn.ReLU()), 1):
        axes = figure.add_subplot(1, 3, number, title=type(layer).__name__, xlabel="frequencies")
        for highest in (1, 2, 3):  # of images of 8 × 8 pixels, known between pixels as well
            fine = fft.ifft2(fft.fft2(noise) * (n <= highest) * (n <= highest)[:, None]).real * 16
            result = isotropy.measure(layer, fine[..., ::16, ::16], shift, finite=False)
            error, formula = result.actions[0]["error"], closed_form(layer(fine))
            print(f"{layer} up to {highest}: measured {error:.8f}, formula {formula:.8f}")
            axes.plot(highest, error, "ko", highest, formula, "rx")  # ● measured, × formula
    return figure


if __name__ == "__main__":
    main().savefig("aliasing.svg")
