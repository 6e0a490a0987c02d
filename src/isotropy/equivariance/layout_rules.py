"""Find out how the result of an operation transforms, from how its inputs do.

The grid is followed through the network instead of being guessed from shapes:

    moving things about   (reshape, permute, cat, split, x[:, 1:], …): every cell of the grid gets a
                          number, the numbers go through the operation, and where they come out
                          says on which axes the grid lies now, and which tokens are no cells
    matmul                rows of the left factor are rows of the result
    attention             the result moves like the queries
    einsum                of two factors with a grid: not known
    what does not move    stays so, but a vector may be unfolded into an image or a sequence
    layers, everything else   like the first input that has a grid, if the result still has its
                          axes; feature maps may change their size

A result of two axes or fewer is invariant. Where no rule applies the layout is None: the operation
is then not judged by itself, its derivative is passed on until a layout is known again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.equivariance.layouts import Grid, Invariant, Layout, Tokens, guess_tokens
from isotropy.equivariance.operations import Operation, is_differentiable

MOVES_ABOUT = {
    "reshape", "view", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims",
    "movedim", "moveaxis", "contiguous", "squeeze", "unsqueeze", "split", "chunk", "unbind",
    "tensor_split", "cat", "concat", "concatenate", "stack", "getitem", "narrow", "select",
    "expand", "expand_as", "view_as", "reshape_as", "index_select", "T", "mT", "H", "mH",
    "Flatten", "Unflatten", "Identity",
}  # fmt: skip

CUT_FROM_LEFT = {"matmul", "bmm"}
CUT_BY_FORMULA = {"einsum"}
ATTENTION = {"scaled_dot_product_attention"}


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of one input: the tensor, its layout, or the last layout before it was lost.

    size: how long the axes of a lost layout were.
    """

    tensor: Tensor
    layout: Layout | None
    lost: Layout | None = None
    size: tuple[int, ...] | None = None

    @property
    def is_vector(self) -> bool:
        """Whether it has one axis beside the batch, if axes of length one are left out."""
        return self.tensor.ndim <= 2 or math.prod(self.tensor.shape[2:]) == 1

    @property
    def has_grid(self) -> bool:
        """Whether it is known to lie on a grid."""
        return isinstance(self.layout, Grid | Tokens)

    def grid_sizes(self) -> tuple[int, ...] | None:
        """How long the axes of the layout are here, or were where it was lost."""
        axes = _axes(self.layout)
        return tuple(self.tensor.shape[axis] for axis in axes) if axes else self.size

    def was_like(self, result: Tensor) -> bool:
        """Whether the layout was lost, and the result has the axes again that were lost."""
        axes = _axes(self.lost)
        if self.layout is not None or not axes or result.ndim <= max(axes):
            return False
        return tuple(result.shape[axis] for axis in axes) == self.size


def layouts_after(
    operation: Operation, known: Sequence[Known], results: Sequence[Tensor], batch: int, axes: int
) -> list[Layout | None]:
    """The layout of each floating-point result of an operation.

    known: the inputs that depend on the network's input; batch: the number of examples;
    axes: how many grid axes the network's input has.
    """
    labelled: list[Layout | None] | None = None
    if operation.kind in MOVES_ABOUT:
        labelled = _by_labels(operation, known)
    found = []
    for position, result in enumerate(results):
        by_label = labelled[position] if labelled and position < len(labelled) else None
        found.append(_layout_of(operation, known, result, batch, axes, by_label))
    return found


def _layout_of(
    operation: Operation,
    known: Sequence[Known],
    result: Tensor,
    batch: int,
    axes: int,
    by_label: Layout | None,
) -> Layout | None:
    if result.ndim == 0 or result.is_complex():  # frequencies are no places
        return None
    # Attention splits queries, keys and values with the batch on the second axis. A grid does not
    # mind which axis is the batch, so that only what has no grid must have it in front.
    batch_first = result.shape[0] == batch
    if result.ndim <= 2 or math.prod(result.shape[2:]) == 1:
        return Invariant() if batch_first else None
    unmoved = all(isinstance(each.layout, Invariant) for each in known)
    if unmoved and batch_first and not all(each.is_vector for each in known):
        return Invariant()
    if operation.kind in MOVES_ABOUT:
        if not unmoved:
            return by_label
        return _decoded(result, axes) if batch_first else None
    if operation.kind in ATTENTION:
        return _like_queries(operation, known)
    if operation.kind in CUT_BY_FORMULA and sum(each.has_grid for each in known) > 1:
        return None
    if operation.kind in CUT_FROM_LEFT:
        return _rows_of(operation, known, result)
    for each in known:
        if each.layout is not None and not isinstance(each.layout, Invariant):
            kept = _kept(each.layout, each.tensor, result)
            if kept is not None:
                return kept
    same_shape = any(each.tensor.shape == result.shape for each in known)
    found_again = next((each.lost for each in known if each.was_like(result)), None)
    if found_again is not None and not same_shape:
        return found_again
    if operation.module is None or not batch_first:
        return None
    if unmoved:
        return _decoded(result, axes)
    # An image that a layer cut into patches by itself; tokens that were known are not guessed at.
    had_tokens = any(isinstance(each.layout or each.lost, Tokens) for each in known)
    may_guess = axes == 2 and result.ndim == 3 and not same_shape and not had_tokens
    return guess_tokens(result) if may_guess else None


def _axes(layout: Layout | None) -> tuple[int, ...]:
    if isinstance(layout, Grid):
        return layout.axes
    return (layout.axis,) if isinstance(layout, Tokens) else ()


def _kept(layout: Layout, tensor: Tensor, result: Tensor) -> Layout | None:
    """The same layout, if the result still has the axes it needs."""
    if isinstance(layout, Grid):
        return layout if result.ndim == tensor.ndim and layout.fits(result) else None
    if isinstance(layout, Tokens):
        if result.ndim != tensor.ndim:
            return None
        more = result.shape[layout.axis] - tensor.shape[layout.axis]
        return layout if more == 0 else layout.with_class_tokens(more)
    return layout if result.shape == tensor.shape else None


def _like_queries(operation: Operation, known: Sequence[Known]) -> Layout | None:
    """Attention moves like its queries; learned ones stay where they are."""
    queries = operation.arguments[0] if operation.arguments else operation.named["query"]
    own = next((each for each in known if each.tensor is queries), None)
    return Invariant() if own is None else own.layout


def _rows_of(operation: Operation, known: Sequence[Known], result: Tensor) -> Layout | None:
    left = next((each for each in known if each.tensor is operation.arguments[0]), None)
    layout = None if left is None else left.layout or left.lost
    if left is None or not isinstance(layout, Tokens):
        return None
    if not layout.axis == result.ndim - 2 == left.tensor.ndim - 2:
        return None
    # Tokens against tokens: the result moves on both axes, and no layout here says that.
    against_tokens = left.layout is not None and len(known) > 1
    return None if against_tokens else layout


def _decoded(result: Tensor, axes: int) -> Layout | None:
    """A vector that was unfolded into an image or a sequence."""
    if axes and result.ndim == axes + 2:
        return Grid(tuple(range(2, result.ndim)))
    return None


def _by_labels(operation: Operation, known: Sequence[Known]) -> list[Layout | None] | None:
    """Number the cells, run the operation on the numbers, and see where they are."""
    gridded = [each for each in known if isinstance(each.layout, Grid | Tokens)]
    if not gridded or len(gridded) < sum(each.layout is None for each in known):
        return None
    grids = {_grid_of(each) for each in gridded}
    if len(grids) > 1:
        return None
    grid = grids.pop()
    replacements = {
        id(tensor): strided_like(torch.zeros_like(tensor, dtype=torch.int64), tensor)
        for tensor in operation.tensors()
        if is_differentiable(tensor)
    }
    for each in gridded:
        replacements[id(each.tensor)] = strided_like(_labels(each), each.tensor)
    with torch.no_grad():
        results = operation.with_tensors(replacements)
    flat = [results] if isinstance(results, Tensor) else list(results)
    return [read_labels(result, grid) if result.ndim else None for result in flat]


def _grid_of(known: Known) -> tuple[int, ...]:
    if isinstance(known.layout, Tokens):
        return known.layout.grid
    assert isinstance(known.layout, Grid)
    return tuple(known.tensor.shape[axis] for axis in known.layout.axes)


def _labels(known: Known) -> Tensor:
    """1, 2, … for the cells and 0 for what is no cell, in the shape of the tensor."""
    tensor, layout = known.tensor, known.layout
    if isinstance(layout, Tokens):
        along = torch.zeros(tensor.shape[layout.axis], dtype=torch.int64, device=tensor.device)
        places = torch.tensor(layout.places, device=tensor.device)
        along[places] = torch.arange(1, len(places) + 1, device=tensor.device)
        shape = [1] * tensor.ndim
        shape[layout.axis] = -1
        return along.reshape(shape).expand(tensor.shape)
    assert isinstance(layout, Grid)
    grid = _grid_of(known)
    cells = torch.arange(1, math.prod(grid) + 1, device=tensor.device).reshape(grid)
    order = sorted(range(len(grid)), key=lambda position: layout.axes[position])
    shape = [1] * tensor.ndim
    for axis, size in zip(layout.axes, grid, strict=True):
        shape[axis] = size
    return cells.permute(order).reshape(shape).expand(tensor.shape)


def strided_like(values: Tensor, tensor: Tensor) -> Tensor:
    """A copy with the tensor's strides, so that what can be viewed there can be viewed here."""
    if 0 in tensor.stride():  # expanded: its elements share memory
        return values.clone()
    strides = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=values.dtype, device=tensor.device
    )
    return strides.copy_(values)


def read_labels(labels: Tensor, grid: tuple[int, ...]) -> Layout | None:
    """The layout of a tensor (batch, …) whose cells have come out with these numbers."""
    first = labels[0]
    if bool((labels != first).any()):
        return None
    varying = [
        axis for axis in range(first.ndim) if bool((first.narrow(axis, 0, 1) != first).any())
    ]
    if not varying:
        return Invariant()
    along = [first.movedim(axis, 0).reshape(first.shape[axis], -1)[:, 0] for axis in varying]
    if len(varying) == 1:
        return _on_one_axis(along[0], varying[0] + 1, grid)
    if len(varying) == 2 and len(grid) == 2 and bool((first > 0).all()):
        rows = (first - 1) // grid[1]
        columns = (first - 1) % grid[1]
        for row, column in (varying, varying[::-1]):
            constant = bool((rows == rows.narrow(column, 0, 1)).all())
            if constant and bool((columns == columns.narrow(row, 0, 1)).all()):
                return Grid((row + 1, column + 1))
    return None


def _on_one_axis(along: Tensor, axis: int, grid: tuple[int, ...]) -> Layout | None:
    cells = math.prod(grid)
    places = torch.argsort(along, stable=True)[int((along == 0).sum()) :]
    ordered = along[places].tolist()
    complete = ordered == list(range(1, cells + 1))
    if len(grid) == 1 and bool((along > 0).all()) and bool((along.diff() > 0).all()):
        return Grid((axis,))
    return Tokens(axis, grid, tuple(places.tolist())) if complete else None
