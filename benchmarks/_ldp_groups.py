"""Streams of several models and several privacy levels, side by side in one batch.

A step of ``mode="swc"`` costs nearly as much for 16 replications as for 150, so all
cases with the same parameters of the method run as one batch. Each group has its own
users and its own noise, and shares nothing with the others.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks._common import seeded
from botorch_dp import StepSchedule
from botorch_dp.exceptions import BotorchDPWarning
from botorch_dp.optimizers import LDPBOServer, LocalRelease
from botorch_dp.privacy.user_account import UserAccount
from botorch_dp.problems import StreamProblem


@dataclass
class Group:
    """Replications of one case.

    Attributes:
        name: What is different in this group, for example model and privacy level.
        stream: The users.
        guarantee: None, a guarantee, or a function from a user's index to one.
    """

    name: tuple[str, ...]
    stream: StreamProblem
    guarantee: Any = None

    def release(self, user: int, gradients: Tensor, **settings: Any) -> Tensor:
        """Return the messages of this user of each replication."""
        if self.guarantee is None:
            return gradients
        guarantee = self.guarantee
        guarantee = guarantee(user) if callable(guarantee) else guarantee
        key = repr(guarantee)
        if getattr(self, "_key", None) != key:
            self._key = key
            self._generator = getattr(self, "_generator", None) or seeded(1)
            self._local = LocalRelease(guarantee, generator=self._generator, **settings)
        return self._local(gradients, ledger=UserAccount())


@dataclass
class Snapshot:
    """A group after so many users.

    Attributes:
        step: The number of users.
        average: The averages, ``R x p``.
        optimum: The optimum then.
        points: The mean number of points.
    """

    step: int
    average: Tensor
    optimum: Tensor
    points: float

    @property
    def errors(self) -> Tensor:
        """The mean squared errors per coordinate, one for each replication."""
        return (self.average - self.optimum).square().mean(dim=-1)


def run_groups(
    groups: Sequence[Group],
    marks: Sequence[int],
    *,
    step_sizes: StepSchedule,
    clip_norm: float = math.sqrt(2),
    mechanism: str = "classical",
    average: str = "running",
    **settings: Any,
) -> dict[tuple[str, ...], list[Snapshot]]:
    """Run all groups as one batch, and return each at the marks.

    Args:
        groups: The groups; their streams have the same dimension.
        marks: The numbers of users after which to measure, ascending.
        step_sizes: The step sizes.
        clip_norm: The clip norm of groups with a guarantee.
        mechanism: The mechanism of these groups.
        average: The kind of average.
        **settings: Further arguments of the server: ``mode``, ``kappa``, ``surrogate``.
    """
    sizes = [group.stream.num_replications for group in groups]
    starts = [
        g.stream.initial_x.expand(n, -1) for g, n in zip(groups, sizes, strict=True)
    ]
    server = LDPBOServer(
        torch.cat(starts),
        step_sizes=step_sizes,
        average=average,
        max_norm=math.inf,
        **settings,
    )
    found: dict[tuple[str, ...], list[Snapshot]] = {group.name: [] for group in groups}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BotorchDPWarning)  # delta = 0.2, and collapse
        for t in range(1, marks[-1] + 1):
            points = server.surrogate.points.split(sizes)
            losses = [
                g.stream.losses(t, X) for g, X in zip(groups, points, strict=True)
            ]
            gradients = server.surrogate.gradient(torch.cat(losses)).split(sizes)
            server.follow(
                torch.cat(
                    [
                        g.release(t, rows, clip_norm=clip_norm, mechanism=mechanism)
                        for g, rows in zip(groups, gradients, strict=True)
                    ]
                )
            )
            if t not in marks:
                continue
            numbers = server.surrogate.num_points.double().split(sizes)
            averages = server.average.split(sizes)
            for group, mean, number in zip(groups, averages, numbers, strict=True):
                optimum = group.stream.optimal_x
                assert optimum is not None
                found[group.name].append(
                    Snapshot(t, mean, optimum, float(number.mean()))
                )
    return found
