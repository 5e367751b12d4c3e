"""Jets of composed functions, against torch.func."""

import pytest
import torch
from torch.func import grad, jacfwd, vmap

from botorch_dp.models.kernels.jets import (
    Pairs,
    add_jets,
    embed_jet,
    multiply_jets,
    outer,
    scale_jet,
)

D = 3


def first_function(x, y):
    return torch.exp(-(x - 2 * y).square().sum())


def second_function(x, y):
    return (x * y).sum() ** 3 + x.sum() * y[0]


def jet_of(function, X1, X2, order):
    """Value and derivatives of a function at all pairs of rows."""
    parts = [function]
    if order > 0:
        parts.append(grad(function))
    if order > 1:
        parts += [grad(function, argnums=1), jacfwd(grad(function), argnums=1)]
    return tuple(vmap(vmap(part, (None, 0)), (0, None))(X1, X2) for part in parts)


@pytest.fixture
def X(generator, double):
    return tuple(torch.rand(n, D, generator=generator, **double) for n in (4, 2))


def assert_equal(jet, expected):
    assert len(jet) == len(expected)
    for part, other in zip(jet, expected, strict=True):
        torch.testing.assert_close(part, other)


@pytest.mark.parametrize("order", [0, 1, 2])
class TestComposition:
    def test_sum(self, order, X):
        jets = (jet_of(f, *X, order) for f in (first_function, second_function))
        expected = jet_of(
            lambda x, y: first_function(x, y) + second_function(x, y), *X, order
        )
        assert_equal(add_jets(*jets), expected)

    def test_product(self, order, X):
        jets = (jet_of(f, *X, order) for f in (first_function, second_function))
        expected = jet_of(
            lambda x, y: first_function(x, y) * second_function(x, y), *X, order
        )
        assert_equal(multiply_jets(*jets), expected)

    def test_scale(self, order, X, double):
        expected = jet_of(lambda x, y: 2.5 * second_function(x, y), *X, order)
        scale = torch.full((1, 1), 2.5, **double)
        assert_equal(scale_jet(scale, jet_of(second_function, *X, order)), expected)

    def test_embedding_of_features(self, order, X):
        dims = torch.tensor([2, 0], device=X[0].device)
        pairs = Pairs(*X).select(dims)
        jet = jet_of(second_function, pairs.X1, pairs.X2, order)
        expected = jet_of(lambda x, y: second_function(x[dims], y[dims]), *X, order)
        assert_equal(embed_jet(jet, dims, D), expected)


class TestPairs:
    def test_all_pairs(self, X):
        pairs = Pairs(*X)
        difference = pairs.left - pairs.right
        assert torch.equal(difference[3, 1], X[0][3] - X[1][1])
        torch.testing.assert_close(pairs.inner_products(), X[0] @ X[1].mT)

    def test_aligned_pairs(self, X):
        pairs = Pairs(X[0], X[0] + 1.0, aligned=True)
        assert (pairs.left - pairs.right).shape == (4, D)
        expected = torch.stack([x @ (x + 1.0) for x in X[0]])
        torch.testing.assert_close(pairs.inner_products(), expected)

    def test_weights(self, X, double):
        weights = torch.tensor([[1.0, 2.0, 0.5]], **double)
        expected = X[0] @ torch.diag(weights[0]) @ X[1].mT
        torch.testing.assert_close(Pairs(*X).inner_products(weights), expected)

    @pytest.mark.parametrize(("aligned", "num_pairs"), [(True, (4,)), (False, (4, 4))])
    def test_parameters_of_a_batch_broadcast(self, aligned, num_pairs, X, double):
        pairs = Pairs(X[0].float(), X[0].float(), aligned=aligned)
        scalars = pairs.scalars(torch.rand(5, 1, **double))
        vectors = pairs.vectors(torch.rand(5, 1, D, **double))
        assert scalars.dtype == vectors.dtype == torch.float32
        values = (pairs.left - pairs.right).sum(dim=-1)
        assert (scalars * values).shape == (5, *num_pairs)
        assert (vectors * (pairs.left - pairs.right)).shape == (5, *num_pairs, D)


def test_outer(X):
    result = outer(X[0][:2], X[1])
    for i in range(2):
        torch.testing.assert_close(result[i], torch.outer(X[0][i], X[1][i]))
