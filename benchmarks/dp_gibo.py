"""DP-GIBO on the experiments of its paper, and the cost of a step.

Writes ``benchmarks/results/dp_gibo.json`` and the table made from it. Run it with
``make benchmarks``, or some sections with ``python -m benchmarks.dp_gibo NAME ...``.
The SVM needs the data: set ``BOTORCH_DP_DATA``.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Sections 4 and C.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from gpytorch.kernels import PolynomialKernel, RBFKernel
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.func import jacfwd

from benchmarks._common import (
    Row,
    in_parallel,
    mean_and_error,
    report,
    resident,
    seconds,
    seeded,
)
from benchmarks.problems import (
    GPLengthscales,
    NoisyObservations,
    SVMLengthscales,
    load_dataset,
)
from botorch_dp import DPGIBO, GDP, GIBO, GPUCB, NoisyGradientDescent, RandomSearch
from botorch_dp.privacy import clip_rows
from botorch_dp.problems import HuberRegression, NormalLocation, PerRecordProblem

DOUBLE = {"dtype": torch.float64}
MUS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, math.inf)


class Observed(DPGIBO):
    """Notes what the mechanism is given. For experiments: that is private."""

    def _release(self, private_mean: Tensor) -> Tensor:
        self.private_mean = private_mean
        return super()._release(private_mean)


def descend(
    problem: PerRecordProblem, opt: Observed, baseline: NoisyGradientDescent, skip: int
) -> tuple[float, float, float]:
    """Errors of both in the end, and DP-GIBO's bias beside its noise after ``skip``."""
    assert problem.optimal_x is not None
    ratios = []
    while not opt.done:
        theta, X = opt.x, opt.ask()
        exact = clip_rows(problem.gradients(theta), opt.clip_norm).mean(dim=0)
        opt.tell(problem(X))
        if len(opt.history) > skip:
            noise = opt.noise_std * math.sqrt(problem.dim)
            ratios.append(float((opt.private_mean - exact).norm()) / noise)
    baseline.run(lambda X: problem.gradients(X[0]), progress=False)
    errors = [float((o.x - problem.optimal_x).norm()) for o in (opt, baseline)]
    return errors[0], errors[1], max(ratios)


def _normal_location(mu: float, seed: int) -> tuple[float, float, float]:
    problem = NormalLocation(seed=seed)
    common: dict[str, Any] = {
        "transform": "identity",
        "update": "sgd",
        "step_size": 0.1,
        "initial_x": torch.zeros(5, **DOUBLE),
    }
    arguments = (problem.bounds, problem.num_records, GDP(mu), 150, 1.0)
    kernel = PolynomialKernel(power=2, offset=1.0)
    opt = Observed(
        *arguments,
        batch_size=3,
        kernel=kernel,
        mean="zero",
        generator=seeded(seed),
        **common,
    )
    baseline = NoisyGradientDescent(*arguments, generator=seeded(seed), **common)
    return descend(problem, opt, baseline, skip=10)


def normal_location() -> list[Row]:
    """Normal location (4.1): d = 5, n = 50, T = 150, b = 3, B = 1

    Polynomial kernel, start at 0, step 0.1 (the paper does not say), 100 seeds; both
    methods get the same noise. Error: distance of the last iterate from the optimum.
    Bias: of the clipped mean gradient, over the noise, at worst after 10 steps.
    """
    return [
        comparison_row(mu, in_parallel(_normal_location, ((mu, s) for s in range(100))))
        for mu in (0.5, 2.0)
    ]


def comparison_row(mu: float, found: list[tuple[float, float, float]]) -> Row:
    ours, theirs, ratios = zip(*found, strict=True)
    return {
        "mu": mu,
        "DP-GIBO, error": mean_and_error(ours),
        "noisy gradient descent, error": mean_and_error(theirs),
        "DP-GIBO / descent": statistics.mean(ours) / statistics.mean(theirs),
        "bias / noise, median seed": statistics.median(ratios),
        "bias / noise, worst seed": max(ratios),
    }


def _huber(mu: float, seed: int) -> tuple[float, float, float]:
    problem = HuberRegression(seed=seed)
    common: dict[str, Any] = {
        "transform": "identity",
        "update": "sgd",
        "step_size": 0.2,
        "initial_x": torch.zeros(4, **DOUBLE),
    }
    arguments = (problem.bounds, problem.num_records, GDP(mu), 100, 1.0)
    kernel = RBFKernel()
    kernel.lengthscale = 2.0
    opt = Observed(
        *arguments, batch_size=2, kernel=kernel, generator=seeded(seed), **common
    )
    baseline = NoisyGradientDescent(*arguments, generator=seeded(seed), **common)
    return descend(problem, opt, baseline, skip=10)


def huber_regression() -> list[Row]:
    """Huber regression (4.2): d = 4, n = 100, T = 100, b = 2, B = 1

    RBF kernel with length scale 2, start at 0, step 0.2 (the paper does not say), 100
    seeds; both methods get the same noise.
    """
    found = in_parallel(_huber, ((1.0, seed) for seed in range(100)))
    return [comparison_row(1.0, found)]


def tune(
    problem: PerRecordProblem,
    method: str,
    seed: int,
    *,
    num_steps: int,
    transform: Any,
    mu: float = 1.0,
    clip_norm: float = 1.0,
    **kwargs: Any,
) -> float:
    """The loss of what a method finds from a random start with b = d + 1."""
    start = problem.bounds[0] + (problem.bounds[1] - problem.bounds[0]) * torch.rand(
        problem.dim, generator=seeded(1000 + seed), **DOUBLE
    )
    n, bounds = problem.num_records, problem.bounds
    opt: Any
    if method == "DP-GIBO":
        opt = DPGIBO(
            bounds,
            n,
            GDP(mu),
            num_steps,
            clip_norm,
            transform=transform,
            initial_x=start,
            generator=seeded(seed),
            **kwargs,
        )
    elif method == "GIBO":
        opt = GIBO(
            bounds,
            n,
            num_steps,
            clip_norm,
            transform=transform,
            initial_x=start,
            **kwargs,
        )
    else:
        torch.manual_seed(2000 + seed)
        classes = {"random search": RandomSearch, "GP-UCB": GPUCB}
        opt = classes[method](
            bounds,
            n,
            num_steps,
            batch_size=problem.dim + 1,
            transform=transform,
            # Not the seed of the data: the first point would be the true length scales.
            generator=seeded(2000 + seed),
        )
    result = opt.run(problem, progress=False)
    return float(problem.evaluate_true(result.x.unsqueeze(0)))


METHODS = ("DP-GIBO", "GIBO", "random search", "GP-UCB")


def _gp(seed: int, transform: str, method: str) -> float:
    problem = GPLengthscales(seed=seed)
    return tune(problem, method, seed, num_steps=25, transform=transform)


def gp_lengthscales() -> list[Row]:
    """GP length scales (4.3): d = 10, n = 4500, T = 25, b = 11, B = 1, mu = 1

    Validation loss of what is found, 10 data sets, random starts, AdaGrad with step 0.2
    in the unit cube (the library's defaults, which come from experiments of this kind).
    All but DP-GIBO are not private; 275 evaluations each. GIBO is DP-GIBO without
    noise, clipped alike. GP-UCB chooses 11 points at a time, jointly, from two starts:
    weaker than one at a time. Raw: length scales as they are, as the paper's text has
    them; log: their logarithms. The paper reports that GP-UCB falls behind in 10
    dimensions.
    """
    truth = [
        float(problem.evaluate_true(problem.true_lengthscales.unsqueeze(0)))
        for problem in (GPLengthscales(seed=seed) for seed in range(10))
    ]
    rows: list[Row] = []
    for transform in ("log", "linear"):
        jobs = [(seed, transform, method) for method in METHODS for seed in range(10)]
        found = in_parallel(_gp, jobs)
        losses = {
            method: found[10 * i : 10 * i + 10] for i, method in enumerate(METHODS)
        }
        row: Row = {"coordinates": "log" if transform == "log" else "raw"}
        row |= {name: mean_and_error(values) for name, values in losses.items()}
        row["true length scales"] = mean_and_error(truth)
        ours, exact = losses["DP-GIBO"], losses["GIBO"]
        row["DP-GIBO / GIBO"] = statistics.mean(ours) / statistics.mean(exact)
        better = sum(a < b for a, b in zip(ours, losses["random search"], strict=True))
        row["DP-GIBO better than random search"] = f"{better} of 10"
        rows.append(row)
    return rows


def _svm(seed: int, method: str) -> float:
    data = load_dataset("substitute_pol")
    problem = SVMLengthscales.from_arrays(
        data["X"],
        data["y"],
        num_train=1000,
        num_records=5000,
        num_features=26,
        seed=seed,
        n_jobs=1,
    )
    options = {"step_size": 0.15} if "GIBO" in method else {}
    return tune(
        problem, method, seed, num_steps=20, transform=problem.transform, **options
    )


def svm_lengthscales() -> list[Row]:
    """SVM with a length scale for each feature (4.4), on other data, mu = 1

    The paper's data (CT slices, 5000 + 5000 rows, d = 33, 5 replications) is not to be
    had here. Instead: `substitute_pol`, a 26-feature regression set, so d = 29; 1000
    training and 5000 validation rows, T = 20, b = d + 1, 3 replications, step 0.15 for
    both GIBOs (the best of seven settings on a like problem). Not a reproduction of the
    paper's figure. Mean squared error of standardized targets.
    """
    if "BOTORCH_DP_DATA" not in os.environ:
        print("BOTORCH_DP_DATA is not set: no SVM experiment.", file=sys.stderr)
        return [{"data": "not available"}]
    methods = ("DP-GIBO", "GIBO", "random search")
    jobs = [(seed, method) for method in methods for seed in range(3)]
    found = in_parallel(_svm, jobs)
    row: Row = {"data": "substitute_pol", "d": 29}
    for i, method in enumerate(methods):
        row[method] = mean_and_error(found[3 * i : 3 * i + 3])
    return [row]


def _noisy(seed: int, method: str, sigma: float) -> float:
    problem = NoisyObservations(GPLengthscales(seed=seed), 0.01, seed=seed)
    kwargs: dict[str, Any] = (
        {} if method == "random search" else {"noise_variance": sigma**2}
    )
    return tune(problem, method, seed, num_steps=25, transform="log", **kwargs)


def noisy_observations() -> list[Row]:
    """Noisy observations (C.5): 4.3 with noise 0.01 on the mean loss, mu = 1

    Five data sets, logarithmic coordinates. The paper's Figure 5 has the right noise
    level best, the overestimate viable and the underestimate worse than random search.
    """
    settings = (
        ("right", 0.01),
        ("overestimated", 1.0),
        ("underestimated", 0.0001),
        ("without noise modelled (jitter 1e-6)", 1e-3),
    )
    jobs = [(s, "DP-GIBO", sigma) for _, sigma in settings for s in range(5)]
    jobs += [(s, "random search", 0.0) for s in range(5)]
    found = in_parallel(_noisy, jobs)
    names = [*(f"DP-GIBO, sigma {name}: {sigma:g}" for name, sigma in settings)]
    names.append("random search (not private)")
    return [
        {"method": name, "loss": mean_and_error(found[5 * i : 5 * i + 5])}
        for i, name in enumerate(names)
    ]


def _utility_gp(seed: int, mu: float) -> float:
    problem = GPLengthscales(seed=seed)
    method = "GIBO" if math.isinf(mu) else "DP-GIBO"
    return tune(problem, method, seed, num_steps=25, transform="log", mu=mu)


def _utility_huber(seed: int, mu: float) -> float:
    problem = HuberRegression(seed=seed)
    assert problem.optimal_value is not None
    method = "GIBO" if math.isinf(mu) else "DP-GIBO"
    loss = tune(problem, method, seed, num_steps=50, transform="linear", mu=mu)
    return loss - problem.optimal_value


def privacy_utility() -> list[Row]:
    """Privacy and utility: what is found, over mu

    GP length scales (n = 4500, d = 10, 5 data sets, logarithmic coordinates, T = 25):
    loss. Huber regression (n = 100, d = 4, 20 data sets, unit cube, T = 50): loss above
    the optimum.
    """
    gp = in_parallel(_utility_gp, ((s, mu) for mu in MUS for s in range(5)))
    huber = in_parallel(_utility_huber, ((s, mu) for mu in MUS for s in range(20)))
    return [
        {
            "mu": "inf (not private)" if math.isinf(mu) else mu,
            "epsilon at delta = 1e-5": (
                "inf" if math.isinf(mu) else GDP(mu).to_approx(1e-5).epsilon
            ),
            "GP length scales": mean_and_error(gp[5 * i : 5 * i + 5]),
            "Huber regression": mean_and_error(huber[20 * i : 20 * i + 20]),
        }
        for i, mu in enumerate(MUS)
    ]


def quadratic(n: int, d: int, seed: int = 0) -> Callable[[Tensor], Tensor]:
    records = torch.rand(n, d, generator=seeded(seed), **DOUBLE)
    squares = records.square().sum(dim=-1, keepdim=True)
    return lambda X: X.square().sum(dim=-1) / 2 - records @ X.mT + squares / 2


def naive_gradient(
    kernel: RBFKernel, theta: Tensor, D: Tensor, losses: Tensor, jitter: float
) -> Tensor:
    """Line 6 as it is printed: refactorize, autograd, n right-hand sides."""

    def k(a: Tensor, b: Tensor) -> Tensor:
        return kernel(a, b).to_dense()

    K = k(D, D) + jitter * torch.eye(len(D), **DOUBLE)
    cross = jacfwd(lambda x: k(x.unsqueeze(0), D)[0])(theta)  # M x d
    solved = torch.cholesky_solve(losses.mT, torch.linalg.cholesky(K))  # M x n
    gradients = solved.mT @ cross
    norms = gradients.norm(dim=-1, keepdim=True)
    return (gradients * (1.0 / norms).clamp(max=1.0)).mean(dim=0)


def naive_evaluation(
    kernel: RBFKernel, theta: Tensor, D: Tensor, b: int, jitter: float
) -> Callable[[], None]:
    """Line 4's trace at b candidates, and its gradient, autograd throughout."""
    Z = torch.rand(b, len(theta), generator=seeded(1), **DOUBLE).requires_grad_()

    def evaluate() -> None:
        points = torch.cat([D, Z])
        noise = jitter * torch.eye(len(points), **DOUBLE)
        root = torch.linalg.cholesky(kernel(points, points).to_dense() + noise)
        cross = jacfwd(lambda x: kernel(x[None], points).to_dense()[0])(theta)
        half = torch.linalg.solve_triangular(root, cross, upper=False)
        torch.autograd.grad(half.square().sum(), Z)

    return evaluate


def speed() -> list[Row]:
    """One step at (d, n, |D|) = (33, 5000, 1700), beside a naive step

    Naive: the kernel matrix factorized anew, its gradient by autograd, n right-hand
    sides; the search is four restarts of L-BFGS on the trace, taken to need 50
    evaluations each, of which one was timed. Ours: the default window of 136 points
    beside the 34 new ones and the design in closed form; in the second row all points.
    """
    d, n, b = 33, 5000, 34
    objective = quadratic(n, d)
    bounds = torch.stack([torch.zeros(d, **DOUBLE), torch.ones(d, **DOUBLE)])
    times: dict[str, dict[str, float]] = {}
    for name, window in (("ours", None), ("ours, all points", 1700)):
        opt = DPGIBO(bounds, n, GDP(1.0), 60, 1.0, window=window, step_size=0.02)
        for _ in range(49):
            opt.tell(objective(opt.ask()))
        asks, tells = [], []
        for _ in range(5):
            asks.append(seconds(opt.ask, 1))
            losses = objective(opt.ask())
            tells.append(seconds(lambda L=losses, o=opt: o.tell(L), 1))
        times[name] = {
            "search": statistics.median(asks),
            "step": statistics.median(tells),
        }
    D = torch.rand(1700, d, generator=seeded(2), **DOUBLE)
    theta, losses = torch.full((d,), 0.5, **DOUBLE), objective(D)
    # With a length scale for each dimension: torch.func cannot take the other one.
    kernel = RBFKernel(ard_num_dims=d).double().requires_grad_(False)
    kernel.lengthscale = 0.5
    naive = seconds(lambda: naive_gradient(kernel, theta, D, losses, 1e-6), 3)
    searching = 200 * seconds(naive_evaluation(kernel, theta, D, b, 1e-6), 3)
    rows: list[Row] = []
    for name, taken in times.items():
        rows.append(
            {
                "": name,
                "search, ms": 1e3 * taken["search"],
                "step without search, ms": 1e3 * taken["step"],
                "naive search, ms": 1e3 * searching,
                "naive step without search, ms": 1e3 * naive,
                "naive / ours, without search": naive / taken["step"],
                "naive / ours, with search": (naive + searching)
                / (taken["step"] + taken["search"]),
            }
        )
    return rows


def floor() -> list[Row]:
    """A step beside its floor: the objective, and one product of weights and losses

    The floor is what every such method pays: the losses of n records at the new points,
    and a d x M matrix times their losses at the M points in use. Median CPU times of
    rounds in which step, objective and product take turns, on one thread. "All points":
    the surrogate uses every point of the run.
    """
    rows: list[Row] = []
    for d, n, before, rounds, window in (
        (5, 1000, 30, 60, None),
        (33, 5000, 20, 20, None),
        (10, 100_000, 10, 10, None),
        (33, 5000, 60, 5, 10_000),
        (1000, 1000, 1, 3, None),
    ):
        objective = quadratic(n, d)
        bounds = torch.stack([torch.zeros(d, **DOUBLE), torch.ones(d, **DOUBLE)])
        steps, options = before + rounds + 1, {"window": window, "step_size": 0.02}
        opt = DPGIBO(bounds, n, GDP(1.0), steps, 1.0, **options)
        for _ in range(before):
            opt.tell(objective(opt.ask()))
        times: dict[str, list[float]] = {"step": [], "objective": [], "product": []}
        for _ in range(rounds):
            start = time.process_time()
            X = opt.ask()
            asked = time.process_time()
            losses = objective(X)
            evaluated = time.process_time()
            opt.tell(losses)
            told = time.process_time()
            used = opt._weights.shape[-1]
            W, L = torch.rand(d, used, **DOUBLE), torch.rand(used, n, **DOUBLE)
            ready = time.process_time()
            _ = W @ L
            times["product"].append(time.process_time() - ready)
            times["objective"].append(evaluated - asked)
            times["step"].append(told - start)
        taken = {name: 1e3 * statistics.median(each) for name, each in times.items()}
        least = taken["objective"] + taken["product"]
        rows.append(
            {
                "d": d,
                "n": n,
                "points in use": f"{used}{', all points' if window else ''}",
                "step, ms": taken["step"],
                "objective, ms": taken["objective"],
                "product, ms": taken["product"],
                "step / floor": taken["step"] / least,
            }
        )
    return rows


def cost_over_time() -> list[Row]:
    """A step's cost over time: d = 10, n = 5000, b = 11, the default window"""
    d, n = 10, 5000
    objective = quadratic(n, d)
    bounds = torch.stack([torch.zeros(d, **DOUBLE), torch.ones(d, **DOUBLE)])
    opt = DPGIBO(bounds, n, GDP(1.0), 200, 1.0, step_size=0.05)
    times = []
    while not opt.done:
        losses = objective(opt.ask())
        start = seconds(lambda L=losses: opt.tell(L), 1)
        times.append(start + (0.0 if opt.done else seconds(opt.ask, 1)))
    return [
        {
            "steps": f"{first + 1} to {first + 20}",
            "points seen": 11 * (first + 20),
            "step, ms": 1e3 * statistics.median(times[first : first + 20]),
        }
        for first in (0, 20, 60, 100, 140, 180)
    ]


def _memory(chunked: bool) -> tuple[float, float]:
    """Peak memory above what was there before, and seconds of the second step."""
    torch.set_num_threads(1)
    d, n = 10, 1_000_000
    records = torch.rand(n, d, generator=seeded(0), **DOUBLE)
    squares = records.square().sum(dim=-1, keepdim=True)

    def chunks(X: Tensor) -> Iterable[Tensor]:
        for rows, square in zip(
            records.split(50_000), squares.split(50_000), strict=True
        ):
            yield X.square().sum(dim=-1) / 2 - rows @ X.mT + square / 2

    bounds = torch.stack([torch.zeros(d, **DOUBLE), torch.ones(d, **DOUBLE)])
    opt = DPGIBO(bounds, n, GDP(1.0), 10, 1.0)
    before = resident("VmRSS")
    for _ in range(2):
        X = opt.ask()
        told: Any = chunks if chunked else torch.cat(list(chunks(X)))
        taken = seconds(lambda T=told: opt.tell(T), 1)
    return resident("VmHWM") - before, taken


def memory() -> list[Row]:
    """A million records at d = 10: two steps of 11 points

    Memory: what two steps add at their peak, losses included, to a process that holds
    the records (0.08 GB). Told as tensors, each further point takes 8 MB until the run
    ends. In chunks no losses are kept, and the window's points are asked for again: 22
    points in the second step, up to 55 later (with ``window=0``, always 11).
    """
    rows: list[Row] = []
    for chunked in (False, True):
        # A new process for each: the peak is that of a process's whole life.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            gigabytes, taken = fresh.submit(_memory, chunked).result()
        rows.append(
            {
                "losses": "in chunks" if chunked else "in one tensor",
                "peak, GB": gigabytes,
                "second step, s": taken,
            }
        )
    return rows


SECTIONS = (
    normal_location,
    huber_regression,
    gp_lengthscales,
    svm_lengthscales,
    noisy_observations,
    privacy_utility,
    speed,
    floor,
    cost_over_time,
    memory,
)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        report(
            "dp_gibo",
            "DP-GIBO, measured",
            SECTIONS,
            only=sys.argv[1:],
        )


if __name__ == "__main__":
    main()
