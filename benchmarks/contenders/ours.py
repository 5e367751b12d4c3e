"""The library's own methods, with the defaults that a user gets."""

import math

import torch
from torch import Tensor

import botorch_dp
from benchmarks.contenders.base import DELTA, gaussian_mu, seeded
from benchmarks.problems.arena_tasks import ArenaTask
from botorch_dp import DPGIBO, ApproxDP, PrivateBO

OLD_STEPS, OLD_NOISE, OLD_LEAST_CLIP = 10, 0.003, 0.25


def old_clip_norm(num_records: int, epsilon: float) -> float:
    """Return the clip norm that PrivateSearch 0.1 used for losses in [0, 1]."""
    mu_of_step = gaussian_mu(epsilon) / math.sqrt(OLD_STEPS)
    return max(OLD_LEAST_CLIP, OLD_NOISE * num_records * mu_of_step / 2)


def old_dp_gibo(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Run DP-GIBO with the settings of PrivateSearch 0.1."""
    run = DPGIBO(
        bounds=task.bounds,
        num_records=task.num_records,
        guarantee=ApproxDP(epsilon, DELTA),
        num_steps=OLD_STEPS,
        clip_norm=old_clip_norm(task.num_records, epsilon),
        noise_variance=1e-4,
        step_size=0.2,
        initial_x=task.start,
        generator=seeded("dp-gibo (old)", seed),
    )
    return run.run(task.losses, progress=False).average


def old_private_bo(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Run PrivateBO on the box, with its defaults and 50 steps."""
    run = PrivateBO(
        bounds=task.bounds,
        num_records=task.num_records,
        guarantee=ApproxDP(epsilon, DELTA),
        num_steps=50,
        loss_range=(0.0, 1.0),
        output="point",
        generator=seeded("private-bo (old)", seed),
    )
    return run.run(task.losses, progress=False).x


def has_minimize() -> bool:
    """Return whether the library has ``minimize``."""
    return hasattr(botorch_dp, "minimize")


def minimize(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Call ``botorch_dp.minimize`` with what everybody knows about the task."""
    result = botorch_dp.minimize(
        task.losses,
        task.bounds,
        num_records=task.num_records,
        guarantee=ApproxDP(epsilon, DELTA),
        loss_range=(0.0, 1.0),
        initial_x=task.start,
        progress=False,
        generator=seeded("minimize", seed),
    )
    return torch.as_tensor(result.x)
