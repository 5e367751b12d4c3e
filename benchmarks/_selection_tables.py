"""The rows of the benchmark of private selection: methods, noise and scores."""

import math
import statistics
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import _selection_plans as plans
from benchmarks._common import Row
from benchmarks._selection_guesses import guesses_of
from benchmarks._selection_methods import (
    UniformProposals,
    best_of,
    composed_search,
    exactly,
    proposed_search,
)
from benchmarks._selection_pools import Pool, load_pools
from benchmarks._selection_tasks import SPACES, TASKS
from benchmarks._training_pools import Task, train
from botorch_dp.integrations.opacus import recommended_count
from botorch_dp.optimizers.selection.adaptive import GPProposals, Proposals
from botorch_dp.privacy.counts import Count

MEAN = 16
TABLE_COUNTS = (
    "Poisson",
    "shape 2",
    "geometric",
    "shape 0.5",
    "logarithmic",
    "geometric, at least 2",
    "geometric, at least 3",
    "geometric, at least 4",
)
DEFAULT = "selection, shape 3 (the default of JointBudget)"
ADAPTIVE, RATIOS = "geometric", ((0.8, 1.25), (0.5, 2.0))
Score = Callable[[Pool, int], float]
# The noise of a method and its score on a pool, at an epsilon, if it can be reached.
Method = Callable[[float], tuple[float, Score] | None]


def tuning(name: str) -> list[Row]:
    """Return the table of a task: rows of methods, columns of epsilons."""
    torch.set_num_threads(1)
    task, pools = TASKS[name](), load_pools(name)
    rows: list[Row] = []
    for label, guess in guesses_of(name).items():
        row: Row = {"": label}
        for epsilon in plans.EPSILONS:
            used, setting = guess(task, epsilon)
            noise = plans.noise_of_one(used, epsilon)
            scores = [
                float(train(used, [setting], [noise], seed=1000 + seed)[1])
                for seed in range(len(pools))
            ]
            row[column(epsilon)] = entry_of(scores, noise)
        rows.append(row)
    for label, method in _methods(name, task).items():
        row = {"": label}
        for epsilon in plans.EPSILONS:
            found = method(epsilon)
            if found is None:
                row[column(epsilon)] = "not possible"
                continue
            noise, score = found
            values = [score(pool, seed) for seed, pool in enumerate(pools)]
            row[column(epsilon)] = entry_of(values, noise)
        rows.append(row)
    return rows


def _methods(name: str, task: Task) -> dict[str, Method]:
    """Return the noise and the score on a pool of each method, given epsilon."""

    def best(probabilities: object, noise: float, std: float) -> Score:
        return lambda pool, seed: best_of(
            probabilities, *pool.at(noise), noise_std=std, seed=seed
        )

    def one(epsilon: float) -> tuple[float, Score]:
        noise = plans.noise_of_one(task, epsilon)
        return noise, best(exactly(1), noise, 0.0)

    def free(epsilon: float) -> tuple[float, Score]:
        noise = plans.noise_of_one(task, epsilon)
        return noise, best(exactly(plans.NUM_RUNS), noise, plans.score_noise(task))

    def joint(epsilon: float) -> tuple[float, Score]:
        noise, mu = plans.noise_of_joint_plan(
            epsilon, task.sampling_rate, task.num_steps
        )
        std = plans.NUM_RUNS**0.5 / (mu * task.num_records)
        return noise, best(exactly(plans.NUM_RUNS), noise, std)

    def composed(epsilon: float) -> tuple[float, Score]:
        noise = plans.noise_of_composition(task, epsilon)
        return noise, best(exactly(plans.NUM_RUNS), noise, plans.score_noise(task))

    def released(epsilon: float) -> tuple[float, Score]:
        noise = plans.noise_of_composition(task, epsilon)
        return noise, lambda pool, seed: composed_search(
            plans.NUM_RUNS,
            SPACES[name].unit(pool.settings),
            *pool.at(noise),
            noise_std=plans.score_noise(task),
            seed=seed,
        )

    def selected(count: Count) -> Method:
        def method(epsilon: float) -> tuple[float, Score]:
            noise = plans.noise_of_selection(task, epsilon, count)
            return noise, best(
                count.probabilities(count.most), noise, plans.score_noise(task)
            )

        return method

    def not_private(epsilon: float) -> tuple[float, Score]:
        del epsilon
        return 0.0, lambda pool, seed: best_of(
            exactly(len(pool.settings)), *pool.at(0.0), noise_std=0.0, seed=seed
        )

    return {
        "one run at a random setting": one,
        "best of 16 at the noise of one run (not private)": free,
        "16 composed, JointBudget's default": joint,
        "16 composed, scores nearly free": composed,
        "16 composed, following released scores (EI)": released,
        DEFAULT: selected(recommended_count(MEAN)),
        **{
            f"selection, {kind}": selected(plans.count_named(kind, MEAN))
            for kind in TABLE_COUNTS
        },
        **_adaptive(name, task),
        "best of the pool without noise (not private)": not_private,
    }


def _adaptive(name: str, task: Task) -> dict[str, Method]:
    """Return selections whose proposals follow their own runs, and one to compare."""
    count = plans.count_named(ADAPTIVE, MEAN)

    def simulated(proposals: Proposals, ratios: tuple[float, float]) -> Method:
        def method(epsilon: float) -> tuple[float, Score] | None:
            noise = plans.noise_of_selection(task, epsilon, count, ratios)
            if not math.isfinite(noise):
                return None

            def score(pool: Pool, seed: int) -> float:
                points = SPACES[name].unit(pool.settings)
                proposals.start(len(pool.settings), points)
                return proposed_search(
                    count.probabilities(count.most),
                    proposals,
                    *pool.at(noise),
                    noise_std=plans.score_noise(task),
                    seed=seed,
                )

            return noise, score

        return method

    return {
        f"simulated, {ADAPTIVE}": simulated(UniformProposals(), (1.0, 1.0)),
        **{
            f"simulated, {ADAPTIVE}, adaptive within {ratios}": simulated(
                GPProposals(ratios=ratios), ratios
            )
            for ratios in RATIOS
        },
    }


def plan_of(
    task: Task, epsilon: float, kind: str | None
) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the noise and the numbers of runs of a count, or of composition."""
    if kind is None:
        return plans.noise_of_composition(task, epsilon), exactly(plans.NUM_RUNS)
    count = plans.count_named(kind, MEAN)
    noise = plans.noise_of_selection(task, epsilon, count)
    return noise, count.probabilities(count.most)


def outline(name: str) -> Task:
    """Return a task without records, which is enough to plan."""
    nothing = torch.empty(0)
    num_records, rate, steps = {
        "mnist": (60_000, 1 / 30, 150),
        "mnist_6000": (6_000, 1 / 30, 150),
        "adult": (36_000, 1 / 20, 100),
        "fares": (22_000, 1 / 20, 200),
    }[name]
    return Task(
        name=name,
        train_inputs=torch.empty(num_records, 0),
        train_targets=nothing,
        test_inputs=nothing,
        test_targets=nothing,
        num_outputs=1,
        num_hidden=0,
        sampling_rate=rate,
        num_steps=steps,
    )


def column(epsilon: float) -> str:
    return f"ε {epsilon:g}"


def entry_of(values: list[float], noise: float) -> str:
    mean = 100 * statistics.mean(values)
    error = 100 * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ± {error:.2f} ({noise:.2f})"
