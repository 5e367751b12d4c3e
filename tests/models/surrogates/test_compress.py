import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import (
    KernelDictionary,
    compress,
    projection_directions,
    sliced_wasserstein,
)
from tests.models.surrogates.helpers import (
    DEVICE,
    NOISE,
    distance,
    greedy,
    make_kernel,
    normal,
    posterior,
)


class TestCompress:
    @pytest.mark.parametrize("budget", [0.01, 0.1, 0.5, 10.0])
    @pytest.mark.parametrize("rule", ["trace", "literal"])
    def test_naive_loop(self, rule, budget, generator):
        kernel = make_kernel()
        X, x = 0.7 * normal(generator, 10, 2), 0.1 * normal(generator, 2)
        dictionary = KernelDictionary(kernel, X, noise_variance=NOISE)
        directions = projection_directions(2, 100, device=DEVICE)
        _, full = posterior(kernel, X, x, NOISE)

        def score(D):
            _, sigma = posterior(kernel, D, x, NOISE)
            if rule == "trace":
                return float((sigma - full).trace() / 2) ** 0.5
            return distance(sigma, full, directions)

        left = greedy(X, score, budget)
        result = compress(dictionary, x, budget, rule=rule)
        assert torch.equal(result.points, left)
        assert torch.equal(dictionary.points, X)
        assert 1 <= result.num_points < 10
        if budget == 10.0:
            assert result.num_points == 1
        _, sigma = posterior(kernel, result.points, x, NOISE)
        assert sliced_wasserstein(sigma, full, directions) <= budget + 1e-9

    def test_bad_arguments(self, generator, double):
        X, x = normal(generator, 4, 2), torch.zeros(2, **double)
        dictionary = KernelDictionary(make_kernel(), X)
        for budget in (0.0, -1.0, float("nan")):
            with pytest.raises(InvalidArgumentError, match=r"kappa.* must .* got"):
                compress(dictionary, x, budget)
        with pytest.raises(InvalidArgumentError, match="rule must be one of 'trace'"):
            compress(dictionary, x, 0.1, rule="none")
        with pytest.raises(InvalidArgumentError, match=r"x must be a 2 tensor"):
            compress(dictionary, x[:1], 0.1)
        batched = KernelDictionary(make_kernel(), X.unsqueeze(0))
        with pytest.raises(InvalidArgumentError, match=r"batch_shape \(1,\)"):
            compress(batched, x, 0.1)
