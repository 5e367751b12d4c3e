"""DP-FTS-DE on the experiments of its paper, and what a step costs.

Writes ``benchmarks/results/dp_fts.json`` and the table made from it. Run it with
``make benchmarks``, or some sections with ``python -m benchmarks.dp_fts NAME ...``.
Landmines and activities need the data: set ``BOTORCH_DP_DATA``.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
        Section 5.
"""

import functools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import (
    Row,
    in_parallel,
    mean_and_error,
    race,
    report,
    resident,
    seeded,
)
from benchmarks._naive_fts import NaiveAgent
from botorch_dp import PrivacyAccountant
from botorch_dp.optimizers.dp_fts import DPFTSDE, FTSDE, ThompsonSampling
from botorch_dp.optimizers.federation import Federation
from botorch_dp.optimizers.fts_accounting import published_privacy_loss
from botorch_dp.privacy import PoissonGaussianEvent
from botorch_dp.problems import (
    ActivityAgents,
    LandmineAgents,
    PerturbedGPDraws,
    TabulatedAgents,
)

SEEDS = 20
AT = (0, 5, 10, 20, 40)  # iterations at which regret is reported
# Only noise is broadcast: whatever beats Thompson sampling then, it is not information.
NOISE_ONLY = 1e6
TS: dict[str, Any] = {"method": "ts"}


def FTS(num_regions: int) -> dict[str, Any]:  # noqa: N802
    return {"method": "fts", "num_regions": num_regions}


def private(
    sampling_rate: float,
    noise_multiplier: float,
    clip_norm: float = 11.0,
    num_regions: int = 2,
    **kwargs: Any,
) -> dict[str, Any]:
    return {
        "method": "dp",
        "num_regions": num_regions,
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "clip_norm": clip_norm,
        **kwargs,
    }


def play(
    problem: TabulatedAgents,
    settings: dict[str, Any],
    how: dict[str, Any],
    seed: int,
    num_steps: int,
) -> dict[str, Any]:
    """Run a method; the mean over agents of their best scores, after each step.

    Args:
        problem: A finite domain.
        settings: Of the federation.
        how: The method and its own settings.
        seed: Of features, agents and server.
        num_steps: How many steps.
    """
    how = dict(how)
    method = how.pop("method")
    federation = Federation(
        num_agents=problem.num_agents,
        lower=(0.0,) * problem.dim,
        upper=(1.0,) * problem.dim,
        num_regions=how.pop("num_regions", 1),
        feature_seed=1000 + seed,
        **settings,
    )
    if method == "dp":
        how["generator"] = seeded(seed)
    cls: Any = {"ts": ThompsonSampling, "fts": FTSDE, "dp": DPFTSDE}[method]
    opt = cls(
        federation,
        num_steps=num_steps,
        candidates=problem.candidates,
        seed=seed,
        **how,
    )
    clipped = []
    while not opt.done:
        opt.tell(problem.evaluate(None, opt.ask()))
        if method == "dp" and len(clipped) < num_steps:
            # The same messages as the server was sent in this round.
            norms = opt.agents.messages(len(clipped)).norm(dim=-1)
            bound = how["clip_norm"] / math.sqrt(federation.num_regions)
            clipped.append(float((norms > bound).double().mean()))
    result = opt.result()
    best = result.private_best_so_far.mean(dim=-1)
    assert problem.optimal_values is not None
    return {
        "best": best.tolist(),
        "regret": (problem.optimal_values.mean() - best).tolist(),
        "clipped": statistics.mean(clipped) if clipped else 0.0,
    }


def exact_loss(q: float, z: float, rounds: int, delta: float) -> float:
    accountant = PrivacyAccountant()
    accountant.compose(PoissonGaussianEvent(z, q), rounds)
    return accountant.get_epsilon(delta)


def losses(how: dict[str, Any], rounds: int, num_agents: int) -> Row:
    """The privacy loss by the paper's accountant, and the exact one."""
    delta = num_agents**-1.1
    q, z = how["sampling_rate"], how["noise_multiplier"]
    published = published_privacy_loss(
        sampling_rate=q, noise_multiplier=z, num_rounds=rounds, delta=delta
    )
    return {
        "epsilon, published": published,
        "epsilon, exact": exact_loss(q, z, rounds, delta),
    }


# The synthetic family

SYNTHETIC = {"lengthscale": (0.03,), "num_features": 50}


def _synthetic(
    seed: int, hows: Sequence[dict[str, Any]], num_agents: int
) -> list[dict[str, Any]]:
    problem = PerturbedGPDraws(num_agents, seed=seed)
    return [play(problem, SYNTHETIC, how, seed, AT[-1]) for how in hows]


def synthetic(
    hows: Sequence[dict[str, Any]], num_agents: int = 200, seeds: int = SEEDS
) -> list[list[dict[str, Any]]]:
    """What each method finds with each seed: methods x seeds."""
    found = in_parallel(
        _synthetic, ((seed, list(hows), num_agents) for seed in range(seeds))
    )
    return [list(column) for column in zip(*found, strict=True)]


def differences(found: list[dict[str, Any]], base: list[dict[str, Any]]) -> Row:
    """Regret minus that of another method, paired by seed."""
    return {
        f"t = {t}": mean_and_error(
            a["regret"][t] - b["regret"][t] for a, b in zip(found, base, strict=True)
        )
        for t in AT
    }


def figure_2a() -> list[Row]:
    """Figure 2a: what agents learn from each other, without privacy

    Simple regret, mean over 200 agents: of Thompson sampling, then of the others minus
    that of Thompson sampling. M = 50, 10 initial points, 1 - p_t = 1 / sqrt(t); draws
    of a Gaussian process on a grid of 1,000 points in [0, 1] with length scale 0.03 (the
    paper's is not in its text), perturbed by 5 % in each value. 20 seeds, of functions,
    features and choices; standard errors of differences within a seed.
    """
    names = ("FTS", "FTS-DE, P = 2", "FTS-DE, P = 4")
    base, *others = synthetic([TS, FTS(1), FTS(2), FTS(4)])
    first: Row = {"": "TS: regret"}
    first |= {f"t = {t}": mean_and_error(run["regret"][t] for run in base) for t in AT}
    return [first] + [
        {"": f"{name}, minus TS"} | differences(found, base)
        for name, found in zip(names, others, strict=True)
    ]
