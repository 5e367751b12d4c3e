"""Sections of ``benchmarks/ldp_bo_tables.py`` on theorems and on drift.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Sections 4, D.3 and E.5.
"""

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks._common import Row, in_parallel, seeded
from benchmarks.ldp_bo import STEPS, B, quiet, start
from botorch_dp import LDPBO, ApproxDP, StepSchedule
from botorch_dp.optimizers import DriftDetector
from botorch_dp.optimizers.ldp.bounds import (
    message_mean_square,
    published_terms,
    squared_error_bound,
)
from botorch_dp.privacy import classical_gaussian_noise_std
from botorch_dp.problems import LinearStream

_BURN_IN = 4000
PUBLISHED_STEPS = StepSchedule(initial=0.2, power=0.505)


def theorem_4_4() -> list[Row]:
    """Theorem 4.4 against a simulation."""
    dim, radius = 5, 0.5 * math.sqrt(5)
    clip_norm = radius + 0.5
    noise = quiet(
        lambda: classical_gaussian_noise_std(
            ApproxDP(2.0, 0.2), sensitivity=2 * clip_norm
        )
    )
    square = message_mean_square(clip_norm=clip_norm, noise_std=noise, dim=dim)
    rows: list[Row] = []
    for bias in (0.0, 0.3):
        generator = seeded(3)
        x = torch.zeros(100, dim)
        shift = bias * torch.eye(dim)[0]
        for t in range(1, STEPS + 1):
            z = torch.randn(100, dim, generator=generator)
            gradient = x - 0.5 - 0.5 * z / z.norm(dim=-1, keepdim=True) + shift
            message = gradient + noise * torch.randn(100, dim, generator=generator)
            x = (x - PUBLISHED_STEPS(t) * message).clamp(0.0, 1.0)
            if t not in (100, 1000, 10_000, STEPS):
                continue
            terms = published_terms(
                t,
                epsilon=2.0,
                delta=0.2,
                clip_norm=clip_norm,
                dim=dim,
                kappa=0.1,
                radius=radius,
                strong_convexity=1.0,
            )
            rows.append(
                {
                    "bias": bias,
                    "t": t,
                    "measured": float((x - 0.5).square().sum(dim=-1).mean()),
                    "repaired bound": squared_error_bound(
                        t,
                        step_sizes=PUBLISHED_STEPS,
                        radius=radius,
                        strong_convexity=1.0,
                        mean_square=square,
                        bias=bias,
                    ),
                    "(bias / curvature)^2": bias**2,
                    "printed, noise": terms.noise,
                    "printed, compression": terms.compression,
                    "printed, start": terms.start,
                }
            )
    return rows


# Drift


def _watched(drift: str | None, sizes: StepSchedule | None) -> Tensor:
    """The alarms of 10 replications, step by step, after 4,000 users, at eps = 2."""
    stream = LinearStream(5, drift=drift, num_steps=STEPS, num_replications=10)
    opt = LDPBO(
        start(stream),
        ApproxDP(2.0, 0.2),
        B,
        step_sizes=sizes,
        average="last",
        generator=seeded(1),
    )
    detector = DriftDetector(
        dim=5, clip_norm=B, noise_std=noise(opt), window=500, batch_shape=(10,)
    )
    alarms = []
    for t in range(1, STEPS + 1):
        before = opt.x
        opt.tell(stream.losses(t, opt.ask()))
        message = (before - opt.x) / opt.server.step_sizes(t)
        if t > _BURN_IN:
            alarms.append(detector.update(message))
    return torch.stack(alarms)  # (T - 4000) x 10


def noise(opt: LDPBO) -> float:
    """The noise of an optimizer that has taken no step."""
    return opt._noise_std(opt._release_of(1))


def drift_alarms() -> list[Row]:
    """Alarms with and without drift."""
    steps = {"default": None, "constant 0.005": StepSchedule(0.005, power=0.0)}
    cases = [
        (None, "default"),
        (None, "constant 0.005"),
        ("abrupt", "default"),
        ("abrupt", "constant 0.005"),
        ("smooth", "default"),
    ]
    jobs = [(_watched, drift, steps[name]) for drift, name in cases]
    rows: list[Row] = []
    for (drift, name), when in zip(cases, in_parallel(quiet, jobs), strict=True):
        row: Row = {"drift": drift or "none", "steps": name}
        other = torch.ones(len(when), dtype=torch.bool)
        for number, jump in (("first", STEPS // 3), ("second", 2 * STEPS // 3)):
            if drift != "abrupt":
                break
            first = jump - _BURN_IN
            span = when[first : first + 2000]
            other[first : first + 2000] = False
            seen = span.any(dim=0)
            row[f"{number} noticed"] = float(seen.double().mean())
            delays = span.double().argmax(dim=0)[seen].double() + 1
            row[f"{number} delay"] = float(delays.median()) if len(delays) else math.nan
        row["other alarms"] = float(when[other].double().sum(dim=0).mean())
        rows.append(row)
    return rows


def _follow(
    restart: bool, seed: int, settings: dict[str, Any]
) -> tuple[list[float], int]:
    """Errors after 5, 10, 15 and 20 thousand users, with or without restarts."""
    stream = LinearStream(5, drift="abrupt", num_steps=STEPS, seed=seed)
    make: dict[str, Any] = {
        "guarantee": ApproxDP(2.0, 0.2),
        "clip_norm": B,
        "generator": seeded(seed),
        **settings,
    }
    opt = LDPBO(stream.initial_x, **make)
    facts = {"dim": 5, "clip_norm": B, "noise_std": noise(opt), "window": 500}
    detector, since, found, count = DriftDetector(**facts), 0, [], 0
    for t in range(1, STEPS + 1):
        before = opt.x
        opt.tell(stream.losses(t, opt.ask()))
        since += 1
        if restart and since > 2000:
            alarm = detector.update((before - opt.x) / opt.server.step_sizes(since))
            if alarm:
                opt = LDPBO(opt.x, **make)
                detector, since, count = DriftDetector(**facts), 0, count + 1
        if t % 5000 == 0:
            error = (opt.average - stream.optimal_x_at(t)).square().mean()
            found.append(float(error))
    return found, count


def restarts() -> list[Row]:
    """Errors with and without restarts."""
    constant = StepSchedule(0.005, power=0.0)
    cases: dict[str, tuple[bool, dict[str, Any]]] = {
        "defaults": (False, {}),
        "defaults, restarted at alarms": (True, {}),
        "constant step 0.005, last iterate": (
            False,
            {"step_sizes": constant, "average": "last"},
        ),
    }
    jobs = [
        (_follow, restart, seed, settings)
        for restart, settings in cases.values()
        for seed in range(2)
    ]
    found = in_parallel(quiet, jobs)
    rows: list[Row] = []
    for i, name in enumerate(cases):
        runs = found[2 * i : 2 * i + 2]
        errors = torch.tensor([each for each, _ in runs])
        row: Row = {"method": name}
        row |= {
            f"t = {5000 * (i + 1)}": 100 * float(errors[:, i].mean()) for i in range(4)
        }
        row["restarts"] = sum(count for _, count in runs) / len(runs)
        rows.append(row)
    return rows
