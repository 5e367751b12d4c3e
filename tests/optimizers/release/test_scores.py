"""Scores of candidates: sensitivities by hand, at corners, and rounding."""

import itertools
import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.optimizers.release import scores as scores_module
from botorch_dp.optimizers.release.scores import METHODS, StableScores
from botorch_dp.privacy import (
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from tests.optimizers.problems import (
    DEVICE,
    DOUBLE,
    seeded,
)
from tests.optimizers.release.problems import (
    candidates,
    make,
)


def make_scores(n=7, T=5, noise_variance=1e-3):
    with DEVICE:
        kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
        kernel.lengthscale = 0.5
    points = candidates()
    evaluated = [3, 8, 20, 31, 39][:T]
    scores = StableScores(
        kernel,
        points,
        evaluated,
        num_records=n,
        width=4.0,
        noise_variance=noise_variance,
    )
    K = kernel(points[evaluated]).to_dense() + noise_variance * torch.eye(T, **DOUBLE)
    weights = torch.linalg.solve(K, kernel(points[evaluated], points).to_dense()).mT
    return scores, weights  # N x T


class TestScores:
    def test_by_hand(self):
        scores, weights = make_scores()
        losses = 4 * torch.rand(7, 5, generator=seeded(), **DOUBLE)
        found = {
            method: torch.cat([*scores.private_scores(method, losses)])
            for method in ("evaluated", "per-record", "linear")
        }
        assert torch.allclose(found["evaluated"], -losses.mean(dim=0))
        smooth = (losses - 2.0) @ weights.mT + 2.0  # n x N, around the middle
        expected = smooth.clamp(0.0, 4.0).mean(dim=0)
        assert torch.allclose(found["per-record"], -expected, atol=1e-9)
        assert torch.allclose(found["linear"], -smooth.mean(dim=0), atol=1e-9)
        for method, index in itertools.product(("per-record", "linear"), (0, 17, 20)):
            value = scores.private_value(method, losses, index)
            expected = -found[method][index]
            if index == 20:  # evaluated: no need to guess
                expected = losses[:, 2].mean()
            assert torch.allclose(value, expected, atol=1e-9)

    @pytest.mark.parametrize("method", ["evaluated", "per-record", "linear"])
    def test_sensitivity_holds_and_is_attained(self, method):
        # One record's losses are set to the corners that move each candidate most.
        scores, weights = make_scores(noise_variance=1e-6)
        bound = scores.sensitivity(method)
        base = 4 * torch.rand(7, 5, generator=seeded(), **DOUBLE)

        def score(row):
            losses = base.clone()
            losses[0] = row
            return torch.cat([*scores.private_scores(method, losses)])

        corners = [torch.full((5,), -1.0, **DOUBLE), torch.full((5,), 3.0, **DOUBLE)]
        for signs in weights.sign():
            corners += [1.0 + 2.0 * signs, 1.0 - 2.0 * signs]
        corners += [
            4 * torch.rand(5, generator=seeded(s), **DOUBLE) - 1 for s in range(20)
        ]
        values = torch.stack([score(row) for row in corners])
        moved = (values.amax(dim=0) - values.amin(dim=0)).max()
        assert moved <= bound * (1 + 1e-9)
        assert moved >= 0.99 * bound

    def test_value_sensitivity(self):
        scores, weights = make_scores()
        base = torch.zeros(7, 5, **DOUBLE)
        for method in ("per-record", "linear"):
            index = 0
            found = []
            for signs in (weights[index].sign(), -weights[index].sign()):
                losses = base.clone()
                losses[0] = 2.0 + 2.0 * signs
                found.append(float(scores.private_value(method, losses, index)))
            size = scores.value_sensitivity(method)
            assert abs(found[0] - found[1]) <= size * (1 + 1e-9)

    @pytest.mark.parametrize("method", METHODS)
    def test_error_is_that_of_simulated_choices(self, method):
        # Other draws of the process, other noise: permute-and-flip as noisy maximum.
        scores, weights = make_scores(n=100, T=4)
        root = torch.linalg.cholesky(
            scores._dictionary.kernel(candidates()).to_dense()
            + 1e-10 * torch.eye(40, **DOUBLE)
        )
        num, prior_std, epsilon = 20_000, 0.4, 0.5
        draws = prior_std * root @ torch.randn(40, num, generator=seeded(5), **DOUBLE)
        evaluated = [3, 8, 20, 31]
        known = draws[evaluated]
        values = known if method == "evaluated" else weights @ known
        noise = torch.rand(values.shape, generator=seeded(6), **DOUBLE).log().neg()
        scale = 2 * scores.sensitivity(method) / epsilon
        chosen = (values + scale * noise).argmax(dim=0)
        if method == "evaluated":
            chosen = torch.tensor(evaluated, device=DEVICE)[chosen]
        regret = draws.amax(dim=0) - draws.gather(0, chosen.unsqueeze(0)).squeeze(0)
        # 256 draws: four standard errors.
        error = 4 * float(regret.std()) / 16
        found = scores.error(method, epsilon, prior_std)
        assert found == pytest.approx(float(regret.mean()), abs=error)

    def test_a_candidate_may_stand_for_many(self, monkeypatch):
        # Every fourth of 40, with the largest noise of about four.
        whole, _ = make_scores(n=100, T=4)
        monkeypatch.setattr(scores_module, "_CANDIDATES_OF_DRAWS", 10)
        part, _ = make_scores(n=100, T=4)
        assert len(part._drawn) < 15
        assert part._drawn[:4] == whole._drawn[:4] == [3, 8, 20, 31]
        few, noise = len(part._drawn) - 4, part._draws[1]
        # The mean of the maximum of k exponentials is 1 + 1/2 + ... + 1/k.
        most = sum(1 / k for k in range(1, math.ceil(36 / few) + 1))
        least = sum(1 / k for k in range(1, math.floor(36 / few) + 1))
        assert least - 0.1 < float(noise[4:].mean()) < most + 0.1
        assert float(noise[:4].mean()) == pytest.approx(1.0, abs=0.15)

    def test_method_has_the_smallest_error(self):
        for n, epsilon, expected in ((7, 0.01, "evaluated"), (10**5, 1.0, None)):
            scores, _ = make_scores(n=n)
            chosen = scores.choose_method(epsilon, prior_std=1.0)
            assert chosen == (expected or "per-record")
            errors = {name: scores.error(name, epsilon, 1.0) for name in METHODS}
            assert chosen == min(errors, key=errors.get)
        # A mean that hardly varies is not worth a choice among more candidates.
        assert scores.choose_method(1.0, prior_std=1e-6) == "evaluated"

    def test_too_many_records_to_smooth_one_by_one(self, monkeypatch):
        scores, _ = make_scores(n=10**5)
        monkeypatch.setattr(scores_module, "_AFFORDABLE", 1e6)
        assert scores.choose_method(1.0, prior_std=1.0) == "linear"

    def test_the_method_is_public(self):
        # The same whatever was told, and known before anything is told.
        names = [make(num_steps=5)._strategy._method for _ in range(2)]
        opt = make(num_steps=5)
        opt.run(lambda X: torch.rand(300, len(X), **DOUBLE), progress=False)
        assert {*names, opt.details["scoring"]} == {names[0]}


class TestRounding:
    """A mean must not round more coarsely than one record counts."""

    @pytest.mark.parametrize("method", ["evaluated", "per-record", "linear"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("low", [0.0, 1000.0, 1e9])
    def test_many_records_far_from_zero(self, method, dtype, low):
        n, width = 100_000, 1.0
        points = candidates(6).to(dtype)
        opt = make(
            n=n,
            candidates=points,
            loss_range=(low, low + width),
            num_steps=3,
            scoring=method,
            noise_variance=1e-2,
        )
        # Doubles, whatever the candidates are: told losses are rounded one by one.
        base = torch.rand(n, 3, generator=seeded(), **DOUBLE)
        found = []
        scores = StableScores(
            opt.kernel,
            opt.search_candidates,
            [0, 1, 2],
            num_records=n,
            width=width,
            noise_variance=1e-2,
        )
        for first in (0.0, width):
            losses = base.clone()
            losses[7] = first
            told = opt.problem.clip((losses + low).to(dtype))
            assert told.dtype == torch.float64
            assert float(told.min()) >= 0.0
            assert float(told.max()) <= width
            told[torch.arange(n, device=DEVICE) != 7] = base[
                torch.arange(n, device=DEVICE) != 7
            ]
            found.append(torch.cat([*scores.private_scores(method, told)]))
        assert opt.problem.loss_width == width
        moved = float((found[1] - found[0]).abs().max())
        assert moved <= scores.sensitivity(method)


class TestLinearWeights:
    """The weights that are applied have no larger norm than was calibrated for.

    Solving for one candidate rounds differently from solving for all: by 2.5 % of the
    sensitivity in single precision and by 1e-8 in double, with these kernels.
    """

    T, RECORDS = 20, 100

    def make(self, dtype, d, lengthscale, noise_variance, **kwargs):
        with DEVICE:
            kernel = RBFKernel().to(dtype).requires_grad_(False)
            kernel.lengthscale = lengthscale
        points = torch.rand(300, d, generator=seeded(d), **DOUBLE).to(dtype)
        return make(
            n=self.RECORDS,
            candidates=points,
            num_steps=self.T,
            scoring="linear",
            kernel=kernel,
            noise_variance=noise_variance,
            **kwargs,
        )

    def corners(self, weights):
        """Yield data sets whose first record moves a prediction most, up and down."""
        for side in (weights > 0, weights < 0):
            losses = torch.rand(self.RECORDS, self.T, generator=seeded(), **DOUBLE)
            losses[0] = side.double()
            yield losses

    def hardest(self, opt, count):
        """Return scores, weights and the candidates whose weights are largest."""
        scores = opt._strategy._scores
        weights = torch.cat([*scores._weights()])
        norms = weights.abs().sum(dim=-1)
        norms[opt._strategy._design] = 0.0  # their values are plain means
        return scores, weights, norms.topk(count).indices.tolist()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("d", [1, 2, 3])
    @pytest.mark.parametrize("lengthscale", [0.3, 1.0])
    @pytest.mark.parametrize("noise_variance", [1e6, 1e-4, 1e-8])
    def test_scores_and_values(self, dtype, d, lengthscale, noise_variance):
        opt = self.make(dtype, d, lengthscale, noise_variance)
        scores, weights, hardest = self.hardest(opt, 20)
        moves, changes = [], []
        for index in hardest:
            values, found = [], []
            for losses in self.corners(weights[index]):
                values.append(float(scores.private_value("linear", losses, index)))
                found.append(torch.cat([*scores.private_scores("linear", losses)]))
            moves.append(abs(values[0] - values[1]))
            changes.append(float((found[0] - found[1]).abs().max()))
        assert max(moves) <= scores.value_sensitivity("linear")
        assert max(changes) <= scores.sensitivity("linear")
        norm = float(weights[hardest[0]].abs().sum())
        assert max(moves) >= 0.99 * norm / self.RECORDS  # the corners are the worst

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_whole_runs(self, dtype, monkeypatch):
        _, weights, (index,) = self.hardest(self.make(dtype, 1, 1.0, 1e-8), 1)
        given = []

        def choose(self, private_scores, *, ledger):
            return torch.tensor(index, device=DEVICE)

        def add(self, private_value, *, ledger, batch_dims=0):
            given.append((float(private_value), self.sensitivity))
            return private_value

        monkeypatch.setattr(PermuteAndFlipMechanism, "release", choose)
        monkeypatch.setattr(LaplaceMechanism, "release", add)
        for losses in self.corners(weights[index]):
            opt = self.make(dtype, 1, 1.0, 1e-8)
            for step in range(self.T):
                opt.ask()
                opt.tell(losses[:, step : step + 1])
        (first, size), (second, same_size) = given
        assert abs(first - second) <= size
        assert size == same_size > 1.0 / self.RECORDS
