"""Searches of the private releases: acquisition functions, and branch and bound.

Writes ``benchmarks/results/release_searches.json`` and the table made from it. Run it
with ``make benchmarks``, or some sections with
``python -m benchmarks.release_searches NAME ...``.

References:
    .. [Kusner2015dpbo] M. Kusner, J. Gardner, R. Garnett and K. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Section 4.
"""

import sys
import warnings

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from benchmarks._common import Row, in_parallel, mean_and_error, report, seeded
from benchmarks.private_release import DrawnInABox
from botorch_dp import ApproxDP, PrivateBO
from botorch_dp.exceptions import UselessReleaseWarning

DOUBLE = {"dtype": torch.float64}
ACQUISITIONS = {"ei": "expected improvement", "thompson": "Thompson", "ucb": "UCB"}
NUM_DRAWS, NUM_FUNCTIONS, NUM_CANDIDATES = 10, 5, 500


def _released(d: int, n: int, seed: int) -> dict[str, float]:
    objective = DrawnInABox(d, n, seed)
    found = {}
    for acquisition in ACQUISITIONS:
        opt = PrivateBO(
            bounds=torch.stack([torch.zeros(d, **DOUBLE), torch.ones(d, **DOUBLE)]),
            num_records=n,
            num_steps=30,
            num_candidates=NUM_CANDIDATES,
            guarantee=ApproxDP(1.0, 1e-6),
            loss_range=(0.0, 1.0),
            adaptive=True,
            acquisition=acquisition,
            generator=seeded(seed),
        )
        result = opt.run(objective, progress=False)
        found[acquisition] = float(objective.mean(result.x.unsqueeze(0)))
    return found


def acquisitions() -> list[Row]:
    """Where to peek: regret of `adaptive` by its acquisition function

    (1, 1e-6)-DP, 30 evaluations of which 9 are peeks, 500 candidates of the unit cube,
    n records. The mean loss is a draw of a Gaussian process with the library's
    kernel, from 0 (the best of 20,000 points) to 1. Means over 10 draws.
    """
    jobs = [(d, n) for d in (2, 4) for n in (2_000,)]
    runs = [(d, n, seed) for d, n in jobs for seed in range(NUM_DRAWS)]
    found = in_parallel(_released, runs)
    return [
        {"d": d, "n": n}
        | {
            name: mean_and_error(
                one[key] for one in found[NUM_DRAWS * i : NUM_DRAWS * (i + 1)]
            )
            for key, name in ACQUISITIONS.items()
        }
        for i, (d, n) in enumerate(jobs)
    ]


def _kernel(name: str) -> Kernel:
    kernel = RBFKernel() if name == "RBF" else MaternKernel(nu=2.5)
    kernel.lengthscale = 0.5
    return kernel.double().requires_grad_(False)


def _candidates(d: int) -> Tensor:
    sobol = torch.quasirandom.SobolEngine(d, scramble=True, seed=0)
    return sobol.draw(NUM_CANDIDATES, dtype=torch.float64)


def _searched(name: str, d: int, num_steps: int) -> Row:
    X, kernel = _candidates(d), _kernel(name)
    jitter = 1e-8 * torch.eye(NUM_CANDIDATES, **DOUBLE)
    root = torch.linalg.cholesky(kernel(X).to_dense() + jitter)
    regrets: dict[str, list[float]] = {"branch-and-bound": [], "ucb": []}
    for seed in range(NUM_FUNCTIONS):
        f = root @ torch.randn(NUM_CANDIDATES, generator=seeded(seed), **DOUBLE)
        for search, found in regrets.items():
            # Asserted, because UCB needs it; the search does not depend on it.
            regret = (
                {"regret_scale": 1.0, "regret_rate": 1.0} if search == "ucb" else {}
            )
            opt = PrivateBO(
                candidates=X,
                num_records=1,
                num_steps=num_steps,
                guarantee=ApproxDP(1.0, 0.1),
                loss_range=(-20.0, 20.0),
                prior_std=1.0,
                noise_variance=1e-8,
                kernel=kernel,
                release="kusner-noise-free",
                output="value",
                correlation=0.99,
                search=search,
                generator=seeded(seed),
                **regret,
            )
            best = -torch.inf
            while not opt.done:
                index = int(torch.cdist(opt.ask(), X).argmin())
                best = max(best, float(f[index]))
                opt.tell(-f[index].expand(1, 1))
            found.append(float(f.max()) - best)
            if search != "ucb":
                value = opt.details["value"]
    return {
        "kernel": name,
        "d": d,
        "T": num_steps,
        "derived regret": value["regret"],
        "c": value["c"],
        "regret of branch and bound": mean_and_error(regrets["branch-and-bound"]),
        "regret of UCB": mean_and_error(regrets["ucb"]),
    }


def branch_and_bound() -> list[Row]:
    """Algorithm 2 without asserted constants: the regret that follows from the kernel

    In prior standard deviations; a draw's range is 4 to 6. 500 candidates, length scale
    0.5, delta = 0.1, correlation 0.99. The derived regret and c add up to the
    sensitivity. The regrets of the two searches are private; they are means over 5
    draws, of values that are exact.
    """
    jobs = [
        (name, d, T)
        for name in ("RBF", "Matern-5/2")
        for d in (1, 2, 3)
        for T in (10, 50)
    ]
    return list(in_parallel(_quiet, jobs))


def _quiet(*job: str | int) -> Row:
    warnings.simplefilter("ignore", UselessReleaseWarning)
    return _searched(*job)  # type: ignore[arg-type]


SECTIONS = (acquisitions, branch_and_bound)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    report(
        "release_searches",
        "Searches of the private releases",
        SECTIONS,
        only=sys.argv[1:],
    )


if __name__ == "__main__":
    main()
