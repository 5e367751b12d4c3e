"""A small problem for selections: a noisy share of records near x."""

import torch

from botorch_dp import GDP, GaussianMechanism
from botorch_dp.optimizers.selection.runs import RunTerms

XS = (0.2, 0.4, 0.6, 0.8)


class Counter:
    """Trains nothing, scores with noise, and counts its calls."""

    def __init__(self, mu=0.5, num_records=1000, generator=None, adjacency="zero_out"):
        self.mechanism = GaussianMechanism(
            GDP(mu),
            sensitivity=1 / num_records,
            adjacency=adjacency,
            generator=generator,
        )
        own = torch.Generator("cpu").manual_seed(5)
        self._records = torch.rand(
            num_records, dtype=torch.float64, device="cpu", generator=own
        )
        self.xs = []

    @property
    def base(self):
        return self.mechanism.event()

    def __call__(self, x, account):
        self.xs.append(x)
        share = ((self._records - float(x)).abs() < 0.1).double().mean()
        return self.mechanism.release(share, ledger=account), f"model at {x}"


def outcomes(selection, function, num):
    """Return the best runs of many selections, without charges and certificates."""
    terms = RunTerms(function, False, selection.base, "zero_out", "record", True, 0)
    return [selection._random_runs.best(terms) for _ in range(num)]
