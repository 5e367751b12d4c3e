r"""Jets: a kernel's value and derivatives at pairs of points, as one value.

A *jet* is a tuple: :math:`(k,)` of order 0, :math:`(k, \nabla_1 k)` of order 1, and
:math:`(k, \nabla_1 k, \nabla_2 k, \nabla_1 \nabla_2^\top k)` of order 2. Jets add,
multiply and scale as kernels do, so that sums and products of kernels follow from
their parts. The parts of a jet only need to broadcast to their full shapes.
"""

from dataclasses import dataclass

from torch import Tensor

Jet = tuple[Tensor, ...]


@dataclass(frozen=True)
class Pairs:
    """Pairs of points: all rows of X1 with all rows of X2, or row by row.

    Attributes:
        X1: A ``... x n x d`` tensor.
        X2: A ``... x m x d`` tensor; ``... x n x d`` if aligned.
        aligned: Whether row i of X1 is paired with row i of X2 only (jets of order 1
            and 2). A value is then ``... x n``, otherwise ``... x n x m``; derivatives
            have one or two further dimensions of size d.
    """

    X1: Tensor
    X2: Tensor
    aligned: bool = False

    @property
    def left(self) -> Tensor:
        """X1 in a shape that broadcasts over the pairs."""
        return self.X1 if self.aligned else self.X1.unsqueeze(-2)

    @property
    def right(self) -> Tensor:
        """X2 in a shape that broadcasts over the pairs."""
        return self.X2 if self.aligned else self.X2.unsqueeze(-3)

    def select(self, dims: Tensor) -> "Pairs":
        """Keep only these features."""
        X1, X2 = (X.index_select(-1, dims) for X in (self.X1, self.X2))
        return Pairs(X1, X2, self.aligned)

    def scalars(self, parameter: Tensor) -> Tensor:
        """Shape a ``batch_shape x 1`` parameter to multiply values."""
        parameter = parameter.to(self.X1.dtype)
        return parameter if self.aligned else parameter.unsqueeze(-1)

    def vectors(self, parameter: Tensor) -> Tensor:
        """Shape a ``batch_shape x 1 x d`` parameter to multiply gradients."""
        parameter = parameter.to(self.X1.dtype)
        return parameter if self.aligned else parameter.unsqueeze(-2)

    def inner_products(self, weights: Tensor | None = None) -> Tensor:
        """Return the inner products, weighted by ``batch_shape x 1 x d`` weights."""
        X1 = self.X1 if weights is None else self.X1 * weights.to(self.X1.dtype)
        if self.aligned:
            return (X1 * self.X2).sum(dim=-1)
        return X1 @ self.X2.transpose(-2, -1)


def add_jets(left: Jet, right: Jet) -> Jet:
    """Return the jet of k + k'."""
    return tuple(a + b for a, b in zip(left, right, strict=True))


def multiply_jets(left: Jet, right: Jet) -> Jet:
    """Return the jet of k k', by the product rule."""
    k, h = left[0], right[0]
    jet = [k * h]
    for a, b in zip(left[1:3], right[1:3], strict=True):
        jet.append(k[..., None] * b + h[..., None] * a)
    if len(left) == 4:
        own = k[..., None, None] * right[3] + h[..., None, None] * left[3]
        jet.append(own + outer(left[1], right[2]) + outer(right[1], left[2]))
    return tuple(jet)


def scale_jet(scale: Tensor, jet: Jet) -> Jet:
    """Return the jet of c k; ``scale`` multiplies values."""
    ranks = (0, 1, 1, 2)
    return tuple(
        scale.reshape(*scale.shape, *[1] * rank) * part
        for part, rank in zip(jet, ranks[: len(jet)], strict=True)
    )


def embed_jet(jet: Jet, dims: Tensor, num_dims: int) -> Jet:
    """Spread derivatives in ``dims`` over all ``num_dims`` features."""
    value, *derivatives = jet
    spread = [
        part.new_zeros(*part.shape[:-1], num_dims).index_add(-1, dims, part)
        for part in derivatives
    ]
    if len(jet) == 4:
        cross = spread[2]  # ... x len(dims) x num_dims
        zeros = cross.new_zeros(*cross.shape[:-2], num_dims, num_dims)
        spread[2] = zeros.index_add(-2, dims, cross)
    return (value, *spread)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """Return the outer products of vectors in the last dimension."""
    return left[..., :, None] * right[..., None, :]
