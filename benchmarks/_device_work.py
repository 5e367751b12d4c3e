"""The work that ``benchmarks.device`` counts and times, on any device.

Each function returns the parts of one step, in their order. A part is a call of this
library, or the objective, which belongs to the user.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from botorch.optim import optimize_acqf
from gpytorch.kernels import RBFKernel
from torch import Tensor

from botorch_dp import DPGIBO, GDP, LDPBO, Federation, PrivateBO, PureDP
from botorch_dp.acquisition import GradientInformation
from botorch_dp.models import GradientGP
from botorch_dp.optimizers.fts.simulation import DPFTSDE
from tests.simulated_accelerator import Counts, count

Device = torch.device | str


@dataclass(frozen=True)
class Part:
    """A part of a step: what it does, and whether the library does it."""

    call: Callable[[], object]
    is_ours: bool = True


def counts_of(part: Part) -> Counts:
    """Return what a part asks of the simulated accelerator, if it is ours."""
    with count() as counts:
        part.call()
    return counts if part.is_ours else Counts()


def asked_and_told(opt: Any, objective: Callable[[Tensor], Tensor]) -> list[Part]:
    """Return a step of an optimizer: ask, evaluate, tell."""
    now: dict[str, Tensor] = {}

    def ask() -> None:
        now["X"] = opt.ask()

    def evaluate() -> None:
        now["losses"] = objective(now["X"])

    return [
        Part(ask),
        Part(evaluate, is_ours=False),
        Part(lambda: opt.tell(now["losses"])),
    ]


def uniform(*shape: int, device: Device, seed: int = 0) -> Tensor:
    """Return uniform doubles, the same ones on all devices."""
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.rand(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return drawn.to(device)


def unit_box(d: int, device: Device) -> Tensor:
    ends = torch.zeros(2, d, dtype=torch.float64, device=device)
    ends[1] = 1.0
    return ends


def squares(records: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the losses of all records, ``n x b``, at points ``b x d``."""
    own = records.square().mean(dim=-1, keepdim=True) / 2

    def losses(X: Tensor) -> Tensor:
        cross = records @ X.mT / records.shape[-1]
        return own - cross + X.square().mean(dim=-1) / 2

    return losses


def dp_gibo(
    device: Device, *, d: int, n: int, before: int, **kwargs: Any
) -> list[Part]:
    """Return a step of DP-GIBO after some steps."""
    opt = DPGIBO(unit_box(d, device), n, GDP(1.0), before + 1000, 1.0)
    return after(before, asked_and_told(opt, squares(uniform(n, d, device=device))))


def ldp_bo(device: Device, *, mode: str, streams: int, before: int) -> list[Part]:
    """Return a step of LDP-BO, p = 5, after some steps."""
    start = torch.zeros(streams, 5, dtype=torch.float64, device=device)
    opt = LDPBO(start, GDP(1.0), 1.0, mode=mode)
    records = uniform(streams, 1, 5, device=device)
    objective = lambda X: (X - records).square().sum(dim=-1)  # noqa: E731
    return after(before, asked_and_told(opt, objective))


def fts(device: Device, *, num_agents: int, before: int) -> list[Part]:
    """Return a round of DP-FTS-DE, D = 2, P = 4, after some rounds."""
    federation = Federation(
        num_agents=num_agents,
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
        lengthscale=(0.2, 0.2),
        num_regions=4,
    )
    opt = DPFTSDE(
        federation,
        num_steps=before + 1000,
        clip_norm=22.0,
        noise_multiplier=1.0,
        sampling_rate=0.35,
        device=device,
    )
    phases = 0.3 * uniform(num_agents, 1, 2, device=device)
    objective = lambda X: (9.0 * X + phases).sin().prod(dim=-1)  # noqa: E731
    return after(before, asked_and_told(opt, objective))


def release(device: Device, *, num_candidates: int, n: int, d: int = 5) -> list[Part]:
    """Return a whole run of PrivateBO: one step, and the release."""
    opt = PrivateBO(
        candidates=uniform(num_candidates, d, device=device),
        num_records=n,
        guarantee=PureDP(1.0),
        loss_range=(0.0, 1.0),
        max_evaluations=50,
    )
    objective = squares(uniform(n, d, device=device, seed=1))
    return [*asked_and_told(opt, objective), Part(opt.result)]


def acquisition(device: Device, *, d: int, n: int) -> GradientInformation:
    """Return gradient information of n points."""
    X = uniform(n, d, device=device)
    kernel = RBFKernel(ard_num_dims=d).to(X)
    kernel.lengthscale = 0.6 * d**0.5
    model = GradientGP(X, X[:, :1], kernel, noise_variance=1e-4)
    return GradientInformation(model, torch.full_like(X[0], 0.5))


def value_and_gradient(device: Device, *, d: int, n: int, q: int) -> list[Part]:
    """Return an evaluation of gradient information and its gradient."""
    acqf = acquisition(device, d=d, n=n)
    Z = uniform(1, q, d, device=device, seed=1).requires_grad_()
    return [Part(lambda: torch.autograd.grad(acqf(Z).sum(), Z))]


def search(device: Device, *, d: int, n: int) -> list[Part]:
    """Return a search for the best point, from 5 starts."""
    acqf, bounds = acquisition(device, d=d, n=n), unit_box(d, device)

    def maximize() -> object:
        torch.manual_seed(0)
        return optimize_acqf(acqf, bounds, q=1, num_restarts=5, raw_samples=20)

    return [Part(maximize)]


def after(before: int, parts: list[Part]) -> list[Part]:
    """Return the parts of a step after some steps were taken."""
    for _ in range(before):
        for part in parts:
            part.call()
    return parts
