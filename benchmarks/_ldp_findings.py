"""Sections of ``benchmarks/ldp_bo_tables.py`` that explain a result of the paper's.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Sections 5, D and E.
"""

import json
import math
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit, ndtr
from torch import Tensor

from benchmarks._common import RESULTS, Row, in_parallel, seeded
from benchmarks.ldp_bo import (
    STEPS,
    B,
    noise_of,
    quiet,
    spread,
    start,
)
from benchmarks.problems import FriedmanStream
from botorch_dp import LDPBO, ApproxDP, StepSchedule
from botorch_dp.optimizers import OnlineBO
from botorch_dp.problems import LogisticStream

# Table 12


class MeanGradient:
    """The mean gradient along (1, 1) of a model in two dimensions, by integration.

    Both models are symmetric, so without noise the mean of the parameter stays on the
    diagonal (c, c). The covariates are u along the diagonal and w across.

    Args:
        model: "logistic" or "linear"; the truth is (1, 1).
        mallows: Whether losses are weighted.
        bound: The clip norm, for the logistic model.
    """

    def __init__(self, model: str, mallows: bool, bound: float = math.inf) -> None:
        grid = np.linspace(-7.0, 7.0, 281)
        self.u, w = np.meshgrid(grid, grid, indexing="ij")
        density = np.exp(-(self.u**2 + w**2) / 2)
        self.density = density / density.sum()
        self.squares = self.u**2 + w**2
        self.weights = np.ones_like(w)
        if mallows:
            self.weights = 2.0 / np.maximum(self.squares, 2.0)
        self.model, self.bound = model, bound

    def __call__(self, c: float) -> float:
        """Return the slope by each of the two coordinates."""
        if self.model == "linear":
            slope = self._huber_slope(math.sqrt(2) * (c - 1.0) * self.u)
            total = (self.density * self.weights * slope * self.u).sum()
            return float(total) / math.sqrt(2)
        total, length = 0.0, np.sqrt(self.squares)
        for label in (-1.0, 1.0):
            slope = self.weights * expit(-label * math.sqrt(2) * c * self.u)
            slope *= np.minimum(1.0, self.bound / np.maximum(length * slope, 1e-12))
            chance = expit(label * math.sqrt(2) * self.u)
            total += float((self.density * chance * -label * self.u * slope).sum())
        return total / math.sqrt(2)

    @staticmethod
    def _huber_slope(mean: Any) -> Any:
        """The mean of a normal variable around ``mean``, cut at -1 and 1."""
        low, high = -1.0 - mean, 1.0 - mean

        def tail(x: Any) -> Any:
            return x * ndtr(x) + np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

        return -1.0 + tail(-low) - tail(-high)

    def root(self) -> float:
        """Return the c at which the mean gradient is zero."""
        return float(brentq(self, 0.5, 2.0))

    def path(self, first: float, number: int) -> tuple[float, float]:
        """Return the average and the last iterate of noiseless published steps."""
        nodes = np.linspace(-1.0, 2.5, 71)
        values = [self(float(c)) for c in nodes]
        sizes = StepSchedule(first, power=0.505)
        c, total = 0.0, 0.0
        for t in range(1, number + 1):
            c -= sizes(t) * float(np.interp(c, nodes, values))
            total += c
        return total / number, c


def table_12_why() -> list[Row]:
    """Table 12: limits and mean paths with Mallows weights and with clipping."""
    rows: list[Row] = []
    measured = {row["method"]: row["none"] for row in results("ldp_bo", "table_12")}
    for name, mallows in (("Mallows weights", True), ("clipping", False)):
        gradient = MeanGradient("logistic", mallows, math.inf if mallows else B)
        hessian, _ = LogisticStream(2, mallows=mallows).asymptotics()
        average, last = gradient.path(0.2, STEPS)
        long, _ = gradient.path(0.2, 10 * STEPS)
        rows.append(
            {
                "method": name,
                "curvature": float(torch.linalg.eigvalsh(hessian)[0]),
                "limit": gradient.root(),
                "average, T = 20,000": average,
                "measured (ldp_bo)": measured[name],
                "last iterate, T = 20,000": last,
                "average, T = 200,000": long,
            }
        )
    return rows


def results(name: str, section: str) -> list[Row]:
    """Return measured rows of another benchmark."""
    found: list[Row] = json.loads((RESULTS / f"{name}.json").read_text())[section]
    return found


# Table 7


def table_7_parts() -> list[Row]:
    """Table 7: measured errors beside the floor and the share of the start."""
    gradient = MeanGradient("linear", True)
    rows: list[Row] = []
    for row in results("ldp_bo", "table_7"):
        if row["varied"] == "kappa":
            continue
        first = float(str(row["value"])) if row["varied"] == "first step" else 0.2
        start_error = 1e3 * (gradient.path(first, STEPS)[0] - 1.0) ** 2
        floor, paper = float(str(row["floor"])), float(str(row["paper"]))
        ours = str(row["LDP-BO"])
        rows.append(
            {
                "varied": row["varied"],
                "value": row["value"],
                "paper": paper,
                "LDP-BO (ldp_bo)": ours,
                "floor": floor,
                "of the start": start_error,
                "paper / floor": paper / floor,
                "ours / floor": float(ours.split()[0]) / floor,
            }
        )
    return rows


# Table 5


def _tune(first: float, guarantee: Any, number: int = 2000) -> dict[str, Tensor]:
    initial = torch.full((5,), first, dtype=torch.float64)
    stream = FriedmanStream(num_replications=4, initial_x=initial)
    x = start(stream)
    opt: LDPBO
    if guarantee is None:
        sizes = StepSchedule(0.2, power=0.505)
        opt = OnlineBO(x, step_sizes=sizes, average="running")
    else:
        opt = LDPBO(x, guarantee, 2.0, generator=seeded(1))
    tuned, untuned = torch.zeros(2, 4, dtype=torch.float64)
    signal = torch.zeros(4, 5, dtype=torch.float64)
    for t in range(1, number + 1):
        if t % 10 == 0:  # predictions cost more than steps
            predicted, truth = stream.predict(t, opt.average)
            tuned += 10 * (predicted - truth).square()
            predicted, truth = stream.predict(t, x)
            untuned += 10 * (predicted - truth).square()
            g = stream.gradients(t, x)
            signal += g * (2.0 / g.norm(dim=-1, keepdim=True)).clamp(max=1.0)
        opt.tell(stream.losses(t, opt.ask()))
    noise = 0.0 if guarantee is None else noise_of(opt)
    return {
        "tuned": tuned,
        "untuned": untuned,
        "gradient": (signal / (number // 10)).mean(dim=0).norm(),
        "noise": torch.tensor(noise * math.sqrt(5 / number)),
        "x": opt.average,
    }


def table_5_friedman() -> list[Row]:
    """Table 5: regret on the Friedman function from several starts."""
    rows: list[Row] = []
    cases: tuple[tuple[float, str, Any], ...] = (
        (0.0, "(1, 0.2)", ApproxDP(1.0, 0.2)),
        (-1.5, "(1, 0.2)", ApproxDP(1.0, 0.2)),
        (-1.5, "(1, 1e-5)", ApproxDP(1.0, 1e-5)),
        (-1.5, "none", None),
        (-0.7, "none", None),
        (-0.7, "(1, 0.2)", ApproxDP(1.0, 0.2)),
        (0.7, "none", None),
        (0.7, "(1, 0.2)", ApproxDP(1.0, 0.2)),
        (1.5, "none", None),
        (1.5, "(1, 0.2)", ApproxDP(1.0, 0.2)),
    )
    runs = in_parallel(quiet, [(_tune, first, each) for first, _, each in cases])
    for (first, name, _), found in zip(cases, runs, strict=True):
        rows.append(
            {
                "start": first,
                "privacy": name,
                "gradient": float(found["gradient"]),
                "noise": float(found["noise"]),
                "untuned": spread(found["untuned"], 1.0),
                "tuned": spread(found["tuned"], 1.0),
                "tuned / untuned": float(
                    found["tuned"].mean() / found["untuned"].mean()
                ),
                "length scales at the end": ", ".join(
                    f"{value:.2f}" for value in found["x"].mean(dim=0).exp().tolist()
                ),
            }
        )
    return rows
