"""Random search, BoTorch's qLogEI and a TuRBO loop, to compare with.

All rivals evaluate the centre of the cube first, where the local optimizers start. The
model of qLogEI is refitted whenever a tenth more points are known (a quarter from 100
dimensions on), that of TuRBO in every round, both from their last hyperparameters, with
at most 30 iterations of L-BFGS-B: one fit from scratch with 300 points in 100
dimensions takes 13 seconds. On one function (Levy's, in 100 dimensions, with a seed
that the tables do not have) qLogEI was worse when it was refitted for each batch, and
both were better or equal with 12 first points instead of 50.

References:
    .. [Eriksson2019turbo] D. Eriksson, M. Pearce, J. R. Gardner, R. Turner and
        M. Poloczek. Scalable Global Optimization via Local Bayesian Optimization.
        NeurIPS 2019. Algorithm and constants of section 2 and the appendix.
"""

import warnings

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks._local_bo.tasks import DOUBLE, Function

_MANY_DIMS = 100


def _initial(dim: int, budget: int, seed: int) -> Tensor:
    """Return the centre and Sobol points: 2 d points, or a share of the budget.

    The share is a fifth, and a twentieth from 100 dimensions on, where such points are
    far from each other and from the centre.
    """
    count = min(2 * dim, budget // (5 if dim < _MANY_DIMS else 20)) - 1
    sobol = SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    return torch.cat([torch.full((1, dim), 0.5, **DOUBLE), sobol])


def _growth(dim: int) -> float:
    """Return by how much the number of points grows before a model is refitted."""
    return 1.1 if dim < _MANY_DIMS else 1.25


def _fit(model: SingleTaskGP, maxiter: int = 30) -> None:
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_gpytorch_mll_scipy(mll, options={"maxiter": maxiter})
    model.eval()


def random_search(f: Function, dim: int, budget: int, seed: int) -> Tensor:
    """Return the values at the centre and at random points."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(budget, dim, generator=generator, **DOUBLE)
    X[0] = 0.5
    return f(X)


def qlogei(f: Function, dim: int, budget: int, seed: int) -> Tensor:
    """Return the values that BoTorch's qLogEI finds.

    One point at a time, and four jointly from 100 dimensions on.
    ``SingleTaskGP`` with its default priors, which scale with the dimension, and
    ``Standardize``; four restarts from 256 raw samples, half of them around the best.
    """
    torch.manual_seed(seed)
    X = _initial(dim, budget, seed)
    Y = f(X).unsqueeze(-1)
    cube = torch.stack([torch.zeros(dim, **DOUBLE), torch.ones(dim, **DOUBLE)])
    known, state = 0, None
    while len(X) < budget:
        model = SingleTaskGP(X, -Y, outcome_transform=Standardize(1))
        if state is not None:
            model.covar_module.load_state_dict(state[0])
            model.mean_module.load_state_dict(state[1])
            model.likelihood.load_state_dict(state[2])
        if len(X) >= _growth(dim) * known:
            _fit(model)
            known = len(X)
            parts = (model.covar_module, model.mean_module, model.likelihood)
            state = [part.state_dict() for part in parts]
        model.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            candidate, _ = optimize_acqf(
                qLogExpectedImprovement(model, best_f=-Y.min()),
                cube,
                q=min(4 if dim >= _MANY_DIMS else 1, budget - len(X)),
                num_restarts=4,
                raw_samples=256,
                options={"maxiter": 100, "sample_around_best": True},
            )
        X = torch.cat([X, candidate])
        Y = torch.cat([Y, f(candidate).unsqueeze(-1)])
    return Y.squeeze(-1)


class _Region:
    """The trust region of TuRBO-1 for a batch size, with the paper's constants."""

    def __init__(self, dim: int, batch_size: int) -> None:
        self.length, self.successes, self.failures = 0.8, 0, 0
        self.patience = -(-max(4, dim) // batch_size)

    def update(self, improved: bool) -> bool:
        """Resize, and return whether the region is too small to go on."""
        self.successes = self.successes + 1 if improved else 0
        self.failures = 0 if improved else self.failures + 1
        if self.successes == 10:
            self.length, self.successes = min(2 * self.length, 1.6), 0
        elif self.failures == self.patience:
            self.length, self.failures = self.length / 2, 0
        return self.length < 0.5**7


def turbo(f: Function, dim: int, budget: int, seed: int) -> Tensor:
    """Return the values that TuRBO-1 finds with Thompson sampling.

    Batches of 4, Matern-5/2 with length scales in [0.005, 4], 2000 candidates that
    differ from the centre in about 20 coordinates each.
    """
    torch.manual_seed(seed)
    batch_size, values = 4, f(X := _initial(dim, budget, seed))
    all_values, region = values, _Region(dim, batch_size)
    state = None
    while len(all_values) < budget:
        scaled = -(values - values.mean()) / values.std()
        covar = ScaleKernel(
            MaternKernel(
                nu=2.5,
                ard_num_dims=dim,
                lengthscale_constraint=Interval(0.005, 4.0),
            )
        )
        likelihood = GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3))
        model = SingleTaskGP(
            X, scaled.unsqueeze(-1), None, likelihood, covar, outcome_transform=None
        )
        if state is not None:
            model.load_state_dict(state)
        _fit(model)
        state = model.state_dict()
        size = min(batch_size, budget - len(all_values))
        candidates = _thompson(model, X, scaled, covar, region.length, size)
        found = f(candidates)
        improved = bool(found.min() < values.min() - 1e-3 * values.min().abs())
        X, values = torch.cat([X, candidates]), torch.cat([values, found])
        all_values = torch.cat([all_values, found])
        if region.update(improved) and len(all_values) < budget:  # start anew
            count = min(2 * dim, budget - len(all_values))
            X = torch.rand(count, dim, **DOUBLE)
            values = f(X)
            all_values = torch.cat([all_values, values])
            region, state = _Region(dim, batch_size), None
    return all_values


def _thompson(
    model: SingleTaskGP,
    X: Tensor,
    scaled: Tensor,
    covar: ScaleKernel,
    length: float,
    size: int,
) -> Tensor:
    """Return Thompson samples in the region around the best point."""
    dim, centre = X.shape[-1], X[scaled.argmax()]
    weights = covar.base_kernel.lengthscale.detach().squeeze()
    weights = weights / weights.log().mean().exp()
    low = (centre - weights * length / 2).clamp(0.0, 1.0)
    high = (centre + weights * length / 2).clamp(0.0, 1.0)
    seed = int(torch.randint(10**6, (1,)))
    sobol = SobolEngine(dim, scramble=True, seed=seed).draw(2000, dtype=torch.float64)
    mask = torch.rand(2000, dim, **DOUBLE) <= min(20.0 / dim, 1.0)
    none = (~mask.any(dim=-1)).nonzero().squeeze(-1)
    mask[none, torch.randint(dim, (len(none),))] = True
    candidates = torch.where(mask, low + (high - low) * sobol, centre)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = model.posterior(candidates).rsample(torch.Size([size])).squeeze(-1)
    return candidates[samples.argmax(dim=-1)]
