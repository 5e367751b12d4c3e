"""The library's own methods, with the defaults that a user gets."""

import math

from torch import Tensor

import botorch_dp
from benchmarks.contenders.base import DELTA, Run, gaussian_mu, seeded
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


def dp_gibo(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Run DP-GIBO from the start, as it plans itself."""
    run = DPGIBO(
        bounds=task.bounds,
        num_records=task.num_records,
        guarantee=ApproxDP(epsilon, DELTA),
        loss_range=(0.0, 1.0),
        initial_x=task.start,
        generator=seeded("dp-gibo", seed),
    )
    return run.run(task.losses, progress=False).average


def private_bo(*, adaptive: bool) -> Run:
    """Return a contender: PrivateBO on the box, as it plans itself."""

    def run(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
        method = PrivateBO(
            bounds=task.bounds,
            num_records=task.num_records,
            guarantee=ApproxDP(epsilon, DELTA),
            loss_range=(0.0, 1.0),
            initial_x=task.start,
            adaptive=adaptive,
            num_steps=100 if adaptive else None,
            generator=seeded(f"private-bo {adaptive}", seed),
        )
        return method.run(task.losses, progress=False).x

    return run


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
    return result.x
