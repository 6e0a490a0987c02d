"""Products of vectors with a matrix of their own for each channel, without moving large maps.

    y(n, g, m) = Σ_k x(n, g, k) W(g, k, m)        x (batch, channels, k)    W (channels, k, m)

One matrix product a channel, which reads x where it lies if either the batch or k lies side by side
in memory. In a factored layer (`fully_connected_pathways`) two of these follow each other, over the
channels c of x(n, c, xy) and then over the channels c' of z(n, c', c). The first writes z with the
batch last, in the order (c, c', n), which the second reads as it is; so it is with the gradient of
z on the way back. Maps themselves keep their pixels last.

Many directions of back-propagation at once (`torch.func.vmap`) are more rows, not more matrices.
Oracle: the product of each channel by itself, and `gradcheck`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def products_by_channel(rows: Tensor, matrices: Tensor, *, batch_last: bool) -> Tensor:
    """(batch, channels, k), (channels, k, m) → (batch, channels, m).

    batch_last: what lies side by side in memory, the batch of the result or its last axis; the
    gradient of `rows` has it the other way round. Values are the same.
    """
    found: Tensor = _Products.apply(rows, matrices, batch_last)
    return found


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, matrices: Tensor, batch_last: bool) -> Tensor:
        if batch_last:
            return torch.bmm(matrices.mT, rows.permute(1, 2, 0)).permute(2, 0, 1)
        return torch.bmm(rows.transpose(0, 1), matrices).transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        rows, matrices, ctx.batch_last = inputs
        ctx.save_for_backward(rows, matrices)
        ctx.save_for_forward(rows, matrices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrices = ctx.saved_tensors
        of_rows = of_matrices = None
        if ctx.needs_input_grad[0]:
            of_rows = products_by_channel(gradient, matrices.mT, batch_last=not ctx.batch_last)
        if ctx.needs_input_grad[1]:
            # Transposed where `matrices` is a transposed parameter, which then has its own order.
            if matrices.stride(-1) == 1:
                of_matrices = torch.bmm(rows.permute(1, 2, 0), gradient.transpose(0, 1))
            else:
                of_matrices = torch.bmm(gradient.permute(1, 2, 0), rows.transpose(0, 1)).mT
        return of_rows, of_matrices, None

    @staticmethod
    def jvp(
        ctx: Any, rows_change: Tensor | None, matrices_change: Tensor | None, _: None
    ) -> Tensor:
        rows, matrices = ctx.saved_tensors
        parts = []
        if rows_change is not None:
            parts.append(products_by_channel(rows_change, matrices, batch_last=ctx.batch_last))
        if matrices_change is not None:
            parts.append(products_by_channel(rows, matrices_change, batch_last=ctx.batch_last))
        return sum(parts[1:], start=parts[0])

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, int | None, None],
        rows: Tensor,
        matrices: Tensor,
        batch_last: bool,
    ) -> tuple[Tensor, int]:
        of_rows, of_matrices, _ = in_dims
        if of_matrices is None:
            assert of_rows is not None
            folded = rows.movedim(of_rows, 0).flatten(0, 1)
            found = products_by_channel(folded, matrices, batch_last=batch_last)
            return found.unflatten(0, (info.batch_size, -1)), 0
        matrices = matrices.movedim(of_matrices, 0)
        if of_rows is not None:
            rows = rows.movedim(of_rows, 0)
        return torch.einsum("...ngk,...gkm->...ngm", rows, matrices), 0
