"""DP-GIBO's default beside its sparse update rule and the private trust region."""

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks._common import seeded
from benchmarks._local_bo.tasks import DOUBLE
from botorch_dp import DPGIBO, GDP, DPTrustRegion

PRIVATE_MU = 0.1
PRIVATE = ("DPGIBO", "DPGIBO, sparse-adagrad", "DPTrustRegion")


class Bumps:
    """Losses in [0, 1] of records that matter in a few of d coordinates.

    Args:
        dim: The number d of parameters.
        active: How many of them matter.
        num_records: The number n of private records.
        kind: ``"smooth"`` (one minus a Gaussian bump), ``"bowl"`` (a clipped square),
            ``"cone"`` (a distance) or ``"valley"`` (a bump along one narrow direction).
        seed: The seed of the records.
    """

    def __init__(
        self, dim: int, active: int, num_records: int, kind: str, seed: int
    ) -> None:
        generator = seeded(seed)
        self.dim, self.num_records, self.kind = dim, num_records, kind
        center = 0.15 + 0.7 * torch.rand(active, generator=generator, **DOUBLE)
        self.active = torch.randperm(dim, generator=generator)[:active]
        spread = torch.randn(num_records, active, generator=generator, **DOUBLE)
        self.records = center + 0.15 * spread

    def __call__(self, X: Tensor) -> Tensor:
        gaps = X[:, self.active] - self.records.unsqueeze(1)
        if self.kind == "valley":
            weights = torch.logspace(0.5, -0.5, gaps.shape[-1], **DOUBLE)
            gaps = gaps * weights
        squares = gaps.square().mean(dim=-1)
        if self.kind == "bowl":
            return squares.clamp(max=1.0)
        if self.kind == "cone":
            return squares.sqrt().clamp(max=1.0)
        return 1 - (-4 * squares).exp()

    def regret(self, x: Tensor) -> float:
        """Return how far the mean loss is above that at the mean record."""
        best = torch.full_like(x, 0.5)
        best[self.active] = self.records.mean(dim=0)
        values = self(torch.stack([x, best])).mean(dim=0)
        return float(values[0] - values[1])


# Name: dimensions, active ones, records, kind.
Case = tuple[int, int, int, str]
CHOOSE: dict[str, Case] = {
    "5 of 5, smooth": (5, 5, 2000, "smooth"),
    "3 of 30, smooth": (30, 3, 4000, "smooth"),
}
JUDGE: dict[str, Case] = {
    "20 of 20, bowl": (20, 20, 3000, "bowl"),
    "2 of 20, bowl": (20, 2, 1000, "bowl"),
    "4 of 40, cone": (40, 4, 1000, "cone"),
    "8 of 8, valley": (8, 8, 1000, "valley"),
}


def private_regret(case: Case, method: str, mu: float, seed: int) -> float:
    """Return the regret of a private run with about 30 (d + 1) evaluations."""
    dim, active, num_records, kind = case
    task = Bumps(dim, active, num_records, kind, seed)
    cube = torch.stack([torch.zeros(dim, **DOUBLE), torch.ones(dim, **DOUBLE)])
    update = "sparse-adagrad" if "sparse" in method else "adagrad"
    planned = DPGIBO(
        cube,
        num_records,
        GDP(mu),
        loss_range=(0.0, 1.0),
        max_evaluations=30 * (dim + 1),
        update=update,
        generator=seeded(seed),
    )
    if method != "DPTrustRegion":
        return task.regret(planned.run(task, progress=False).x)
    plan = planned.plan
    assert plan is not None
    kernel = RBFKernel()
    kernel.lengthscale = plan.length_scale
    opt = DPTrustRegion(
        cube,
        num_records,
        GDP(mu),
        plan.num_steps,
        plan.clip_norm,
        kernel=kernel,
        generator=seeded(seed),
    )
    return task.regret(opt.run(task, progress=False).x)
