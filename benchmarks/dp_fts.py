"""DP-FTS-DE on the experiments of its paper, and the cost of a step.

Writes ``benchmarks/results/dp_fts.json`` and the table made from it. Run it with
``make benchmarks``, or some sections with ``python -m benchmarks.dp_fts NAME ...``.
Landmines and activities need the data: set ``BOTORCH_DP_DATA``.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
        Section 5.
"""

import dataclasses
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
from benchmarks.problems import ActivityAgents, LandmineAgents
from botorch_dp import PrivacyAccountant
from botorch_dp.optimizers.baselines.fts import FTSDE, ThompsonSampling
from botorch_dp.optimizers.fts.accounting import published_privacy_loss
from botorch_dp.optimizers.fts.federation import Federation
from botorch_dp.optimizers.fts.simulation import DPFTSDE
from botorch_dp.privacy import PoissonGaussianEvent
from botorch_dp.problems import PerturbedGPDraws, TabulatedAgents
from examples.flower_on_one_machine.local_federation import loopback
from examples.flower_on_one_machine.loopback import demo_settings

SEEDS = 20
AT = (0, 5, 10, 20, 40)  # iterations at which regret is reported
# Only noise is broadcast: whatever beats Thompson sampling then, it is not information.
NOISE_ONLY = 1e6
TS: dict[str, Any] = {"method": "ts"}


def fts(num_regions: int) -> dict[str, Any]:
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
        settings: The settings of the federation.
        how: The method and its own settings.
        seed: The seed of features, agents and server.
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
    for number in range(num_steps + 1):
        opt.tell(problem.evaluate(None, opt.ask()))
        if method == "dp" and number % 10 == 0:
            # The same messages as the server was sent in this round.
            norms = opt.agents.messages(number).norm(dim=-1)
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
    if z == NOISE_ONLY:
        return {"epsilon, published": "", "epsilon, exact": ""}
    published: object = ""
    if q < 1.0:  # the paper's formula is for samples
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
    that of Thompson sampling. M = 50, 10 initial points, 1 - p_t = 1 / sqrt(t). One
    draw of a Gaussian process on a grid of 1,000 points in [0, 1], length scale 0.03,
    each value perturbed by 0.05 for each agent (ours: the paper's are not in its text).
    20 seeds, of functions, features and choices; errors are standard errors of the
    differences within a seed. At t = 0 agents of FTS-DE have seen their own regions
    only. As in the paper, FTS is better than TS, and FTS-DE with P = 4 better still, by
    about two standard errors from t = 10 on; with P = 2 it is no better than FTS here.
    """
    names = ("FTS", "FTS-DE, P = 2", "FTS-DE, P = 4")
    base, *others = synthetic([TS, fts(1), fts(2), fts(4)])
    first: Row = {"": "TS: regret"}
    first |= {f"t = {t}": mean_and_error(run["regret"][t] for run in base) for t in AT}
    rows = [first] + [
        {"": f"{name}, minus TS"} | differences(found, base)
        for name, found in zip(names, others, strict=True)
    ]
    for name, found in zip(names[1:], others[1:], strict=True):
        rows.append({"": f"{name}, minus FTS"} | differences(found, others[0]))
    return rows


def figure_2bcd() -> list[Row]:
    """Figures 2b, c, d: privacy, and regret minus that of Thompson sampling

    DP-FTS-DE with P = 2 (the figures do not say which), N = 200, T = 40 broadcasts,
    delta = N^-1.1; S = 11, q = 0.25 and z = 1 where not varied; tight sensitivity.
    Published: by the paper's accountant, equal to its captions (5.93, 9.91, 20.12;
    7.39, 5.22). Exact: of the same noise. Clipped: which share of the vectors; private,
    for measuring. (The paper has 0.8 % at S = 11.) Only noise: z = 1e6.

    Private agents do better than TS in all rows of the paper from t = 5 to 20, by about
    as much as FTS-DE does without privacy; as only noise is worse than TS, what helps
    is information. It fades at epsilon = 1 (q = 0.05, z = 4). Unlike in the paper, a
    small S is no harm: once all vectors are clipped S cancels, as a maximum does not
    depend on scale, so that S = 2 and S = 5 are the same, and no worse than S = 11.
    """
    cases: list[tuple[str, object, dict[str, Any]]]
    cases = [("S", 11.0, private(0.25, 1.0))]
    cases += [("S", s, private(0.25, 1.0, s)) for s in (2.0, 5.0, 22.0)]
    cases += [("q", q, private(q, 1.0)) for q in (0.05, 0.15, 0.5)]
    cases += [("z", z, private(0.25, z)) for z in (1.2, 1.5, 4.0)]
    cases.append(("z", "only noise", private(0.25, NOISE_ONLY)))
    base, *found = synthetic([TS, *(how for *_, how in cases)])
    return [
        {"varied": name, "value": value}
        | losses(how, AT[-1], 200)
        | {"clipped, %": 100 * statistics.mean(run["clipped"] for run in runs)}
        | differences(runs, base)
        for (name, value, how), runs in zip(cases, found, strict=True)
    ]


def sensitivity() -> list[Row]:
    """The exact sensitivity against the paper's bound, at equal privacy

    S = 11, z = 1, T = 40; regret minus that of Thompson sampling, or of the other. The
    bound has sqrt(P) times as much noise while agents count in one region only. That
    decides at P = 4: with the bound the gain over TS is gone, with the exact
    sensitivity most of it is there at q = 0.25 (at q = 0.1 both are no better than TS).
    """
    rows: list[Row] = []
    cases = [
        (q, num_regions, which)
        for q in (0.25, 0.1)
        for num_regions in (2, 4)
        for which in ("tight", "paper")
    ]
    hows = [private(q, 1.0, 11.0, P, sensitivity=which) for q, P, which in cases]
    base, *found = synthetic([TS, *hows])
    for i in range(0, len(cases), 2):
        q, num_regions, _ = cases[i]
        label: Row = {"q": q, "P": num_regions}
        label["epsilon, exact"] = exact_loss(q, 1.0, AT[-1], 200**-1.1)
        tight, paper = found[i : i + 2]
        rows.append(label | {"": "tight, minus TS"} | differences(tight, base))
        rows.append(label | {"": "paper, minus TS"} | differences(paper, base))
        rows.append(label | {"": "tight, minus paper"} | differences(tight, paper))
    return rows


def fewer_rounds() -> list[Row]:
    """A server that falls silent: privacy, and regret minus that of Thompson sampling

    P = 2, S = 5, q = 0.25, z = 1; after so many broadcasts agents go on by themselves.
    Agents follow the server most often at first, so that early broadcasts matter most:
    ten of them cost less than half of what forty do, and nearly all of the gain stays.
    """
    numbers = (40, 20, 10, 5, 2)
    hows = [private(0.25, 1.0, 5.0, num_rounds=number) for number in numbers]
    base, *found = synthetic([TS, *hows])
    return [
        {"broadcasts": number}
        | losses(how, number, 200)
        | {"": "minus TS"}
        | differences(runs, base)
        for number, how, runs in zip(numbers, hows, found, strict=True)
    ]


def more_agents() -> list[Row]:
    """How many agents it takes: regret minus that of Thompson sampling

    P = 2, S = 5, q = 0.25, z = 1, T = 40, delta = N^-1.1, 10 seeds. What an agent can
    add falls as 1 / N, and the noise with it. With 10 or 20 agents the private method
    is not better than TS; with 50 not clearly; with 100 or more it gains about as much
    as FTS-DE does without privacy.
    """
    rows: list[Row] = []
    names = ("FTS-DE, P = 2", "DP-FTS-DE, P = 2", "only noise")
    hows = [fts(2), private(0.25, 1.0, 5.0), private(0.25, NOISE_ONLY)]
    for num_agents in (10, 20, 50, 100, 200, 1000):
        base, *others = synthetic([TS, *hows], num_agents, 10)
        loss = exact_loss(0.25, 1.0, AT[-1], num_agents**-1.1)
        for name, found in zip(names, others, strict=True):
            row: Row = {"N": num_agents, "": f"{name}, minus TS"}
            row["epsilon, exact"] = loss if name.startswith("DP") else ""
            rows.append(row | differences(found, base))
    return rows


# Agents that tune a classifier

# Public guesses: length scales of a fifth of each range, scores that vary by a tenth.
TUNING = {
    "num_features": 100,
    "outputscale": 0.01,
    "noise_variance": 1e-4,
    "center": True,
    "trust": "inverse",
}


def tabulated(cls: Any, grid_size: int) -> TabulatedAgents:
    """All scores on a grid, computed once on a machine."""
    folder = Path(tempfile.gettempdir()) / "botorch_dp_benchmarks"
    folder.mkdir(exist_ok=True)
    path = folder / f"{cls.__name__}_{grid_size}.pt"
    dim = len(cls.hyperparameters)
    if not path.exists():
        torch.set_num_threads(1)
        table = cls(n_jobs=2).tabulate(grid_size)
        torch.save(table.values.reshape(-1, *[grid_size] * dim), path)
    return TabulatedAgents(torch.load(path), [(0.0, 1.0)] * dim)


def _tune(
    values: TabulatedAgents, seed: int, hows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    settings = TUNING | {"lengthscale": (0.2,) * values.dim}
    return [play(values, settings, how, seed, 60) for how in hows]


def frontier(cls: Any, grid_size: int) -> list[Row]:
    if "BOTORCH_DP_DATA" not in os.environ:
        print("BOTORCH_DP_DATA is not set: no tuning.", file=sys.stderr)
        return [{"data": "not available"}]
    problem = tabulated(cls, grid_size)
    P, S = 4, 22.0
    cases: list[tuple[str, dict[str, Any]]] = [
        ("TS", TS),
        ("TS, begun in regions", {"method": "ts", "num_regions": P}),
        ("FTS", fts(1)),
        ("FTS-DE", fts(P)),
    ]
    cases += [
        ("DP-FTS-DE", private(q, z, S, P))
        for q, z in ((0.35, 1.0), (0.35, 2.0), (0.35, 4.0), (0.25, 1.0), (0.15, 1.0))
    ]
    cases.append(("paper's sensitivity", private(0.35, 1.0, S, P, sensitivity="paper")))
    cases.append(("S = 5", private(0.35, 1.0, 5.0, P)))
    cases.append(("every agent counts", private(1.0, 1.0, S, P)))
    cases.append(("only noise", private(0.35, NOISE_ONLY, S, P)))
    hows = [how for _, how in cases]
    found = in_parallel(_tune, ((problem, seed, hows) for seed in range(10)))
    columns = [list(column) for column in zip(*found, strict=True)]
    rows: list[Row] = []
    for (name, how), runs in zip(cases, columns, strict=True):
        row: Row = {"": name}
        if how["method"] == "dp":
            row |= {"q": how["sampling_rate"], "z": how["noise_multiplier"]}
            row |= losses(how, 60, problem.num_agents)
            row["clipped, %"] = 100 * statistics.mean(run["clipped"] for run in runs)
        else:
            row |= {"q": "", "z": "", "epsilon, published": ""}
            row |= {"epsilon, exact": "", "clipped, %": ""}
        for t in (10, 60):
            row[f"score, t = {t}"] = mean_and_error(run["best"][t] for run in runs)
            if runs is not columns[0]:
                row[f"minus TS, t = {t}"] = mean_and_error(
                    a["best"][t] - b["best"][t]
                    for a, b in zip(runs, columns[0], strict=True)
                )
            else:
                row[f"minus TS, t = {t}"] = ""
        rows.append(row)
    assert problem.optimal_values is not None
    best = float(problem.optimal_values.mean())
    rows.append({"": "best on the grid", "score, t = 60": best})
    return rows


def landmine() -> list[Row]:
    """Figure 3a: landmines, 29 agents, two hyperparameters of a support vector machine

    Mean over agents of the best area under the curve on the validation half, after 60
    broadcasts; TS and the other rows without q and z are not private. The paper's
    settings (P = 4, S = 22, M = 100, 10 initial points), and 1 - p_t = 1 / (t + 1) as
    in the authors' script. Public guesses of ours: length scale 0.2 in the unit square,
    variance 0.01, noise variance 1e-4, scores centered by each agent. 10 seeds, a grid
    of 25 x 25 points. Only noise: z = 1e6.

    Nothing is better than Thompson sampling here. FTS-DE without privacy is not, so
    that there is nothing for privacy to keep: what is good for a field is not what is
    good for the mean of all (0.712 at the best common point). The private rows are
    those of only noise, at every epsilon: 29 agents are too few. At t = 10 beginning
    in one region has cost 0.007; at t = 60 that is made good. In the paper DP-FTS-DE is
    far better than TS; its scores are random (see LandmineAgents), and it takes maxima
    of them.
    """
    return frontier(LandmineAgents, 25)


def activity() -> list[Row]:
    """Figure 3b: activities, 30 agents, three hyperparameters of logistic regression

    Mean over agents of the best accuracy on the validation half. Settings as for
    landmines, on a grid of 11 x 11 x 11 points. Which hyperparameters the paper tunes
    is not in its text, and the data are a part of the paper's: see ActivityAgents.

    Nothing is better than Thompson sampling here, either, with privacy or without.
    """
    return frontier(ActivityAgents, 11)


# What it costs


def waves(num_agents: int, dim: int) -> Callable[[Tensor], Tensor]:
    """A smooth function for each agent in the unit cube."""
    phases = 0.3 * torch.rand(
        num_agents, 1, dim, generator=seeded(0), dtype=torch.float64
    )
    return lambda X: (9.0 * X + phases).sin().prod(dim=-1)


def box(num_agents: int, dim: int, num_regions: int, **kwargs: Any) -> Federation:
    return Federation(
        num_agents=num_agents,
        lower=(0.0,) * dim,
        upper=(1.0,) * dim,
        lengthscale=(0.2,) * dim,
        num_regions=num_regions,
        **kwargs,
    )


def advance(opt: DPFTSDE, objective: Callable[[Tensor], Tensor]) -> None:
    opt.tell(objective(opt.ask()))


def naive_step(
    federation: Federation, rounds: int, *, alone: bool = False
) -> Callable[[], object]:
    """A step of an agent that has come as far as the others, to be timed.

    Args:
        federation: The federation of the agent.
        rounds: How many there were.
        alone: Whether there is no broadcast to be maximized.
    """
    drawn = federation.features()
    agent = NaiveAgent(
        0,
        lambda x: float(np.sin(9.0 * x + 0.1).prod()),
        (drawn.frequencies.numpy(), drawn.phases.numpy()),
        federation.regions().cuts,
        lengthscale=federation.lengthscale[0],
    )
    more = agent.rng.random((rounds, federation.dim))
    agent.X = np.vstack([agent.X, more])
    agent.y = np.append(agent.y, [agent.score(x) for x in more])
    shape = federation.num_regions, federation.num_features
    broadcast = None if alone else np.random.default_rng(1).standard_normal(shape)
    return lambda: agent.step(rounds, broadcast)


def speed() -> list[Row]:
    """Seconds per iteration of 200 agents, M = 50, in a box, beside a naive loop

    Naive: one agent at a time, two models from scratch, 1,000 random points and 20 runs
    of L-BFGS for the agent's own sample and again for the broadcast, as in the authors'
    scripts. One agent was timed, and its time multiplied by 200. Ours: 1,000 points
    that agents share, and steps along the gradient from the best of them. Taken in
    turns, with 20 to 30 observations each; server and noise included. One broadcast
    search: a naive loop that, like ours, maximizes the broadcast once for all agents.
    Shared features: local Thompson sampling with the agents' common features in place
    of fresh ones, which naive and batch draw otherwise.
    """
    num_agents, rounds = 200, 10
    rows: list[Row] = []
    for dim in (1, 2):
        for num_regions in (1, 4):
            federation = box(num_agents, dim, num_regions, num_features=50)
            objective = waves(num_agents, dim)
            calls = {
                "naive": naive_step(federation, rounds),
                "alone": naive_step(federation, rounds, alone=True),
            }
            for local in ("fresh", "shared"):
                opt = DPFTSDE(
                    dataclasses.replace(federation, local=local),
                    num_steps=1000,
                    clip_norm=11.0,
                    noise_multiplier=1.0,
                    sampling_rate=0.25,
                )
                for _ in range(rounds):
                    advance(opt, objective)
                calls[local] = functools.partial(advance, opt, objective)
            times = race(calls)
            scaled = num_agents * times["naive"]
            shared = (num_agents - 1) * times["alone"] + times["naive"]
            rows.append(
                {
                    "D": dim,
                    "P": num_regions,
                    "naive, s": scaled,
                    "batch, ms": 1e3 * times["fresh"],
                    "naive / batch": scaled / times["fresh"],
                    "naive, one broadcast search / batch": shared / times["fresh"],
                    "batch with shared features, ms": 1e3 * times["shared"],
                    "naive / batch with shared features": scaled / times["shared"],
                }
            )
    return rows


def _scale(num_agents: int) -> tuple[float, float]:
    """Seconds of a step, and the peak memory of the process in GB."""
    torch.set_num_threads(1)
    objective = waves(num_agents, 2)
    opt = DPFTSDE(
        box(num_agents, 2, 4),
        num_steps=60,
        clip_norm=22.0,
        noise_multiplier=1.0,
        sampling_rate=0.35,
    )
    times = []
    for _ in range(16):
        began = time.perf_counter()
        advance(opt, objective)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]), resident("VmHWM")


def scale() -> list[Row]:
    """Many agents: D = 2, M = 100, P = 4, in a box

    The median of steps 1 to 15; memory at the peak of the whole process, of which about
    0.36 GB are Python and torch.
    """
    rows: list[Row] = []
    for num_agents in (100, 1000, 10_000):
        # A new process for each: the peak is that of a process's whole life.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            taken, gigabytes = fresh.submit(_scale, num_agents).result()
        rows.append(
            {
                "N": num_agents,
                "step, s": taken,
                "step and agent, ms": 1e3 * taken / num_agents,
                "peak, GB": gigabytes,
            }
        )
    return rows


# Deployment


def _deployed(folder: Path, *, tls: bool, kill: bool) -> Row:
    rounds, timeout = 8, 30.0
    settings = demo_settings(folder, agents=4, rounds=rounds, timeout=timeout)
    with loopback(folder, settings, tls=tls) as whole:
        whole.submit()
        whole.wait(rounds=3, timeout=240.0)
        if kill:
            whole.kill_agent(3)
        whole.wait(rounds=rounds, timeout=600.0)
        status = whole.finish(timeout=120.0)
        taken = whole.private_seconds()
    before = statistics.median(taken[1:3])  # the first round waits for all agents
    after = taken[3:]
    return {
        "TLS and authentication": "yes" if tls else "no",
        "an agent is killed": "after round 3" if kill else "no",
        "s a round, rounds 2 and 3": before,
        "s a round, rounds 4 to 8": ", ".join(f"{value:.1f}" for value in after),
        "s lost": sum(max(0.0, value - before) for value in after) if kill else "",
        "kB a round": status["network-traffic"]["total-bytes"] / (rounds + 1) / 1000,
    }


def flower() -> list[Row]:
    """Four agents on Flower, all on this machine

    A superlink, four supernodes, M = 100, P = 2, eight rounds. Each message is answered
    in a copy of a process that has torch loaded. A round waits for 30 seconds at most;
    an agent that was killed is waited for until Flower knows that it is gone. Bytes as
    Flower counts them, of all agents together. Measured while other programs kept both
    cores of the machine busy.
    """
    rows = []
    for tls, kill in ((False, False), (True, False), (False, True)):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_deployed(Path(folder), tls=tls, kill=kill))
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    report(
        "dp_fts",
        "DP-FTS-DE, measured",
        [
            figure_2a,
            figure_2bcd,
            sensitivity,
            fewer_rounds,
            more_agents,
            landmine,
            activity,
            speed,
            scale,
            flower,
        ],
        only=sys.argv[1:],
    )
