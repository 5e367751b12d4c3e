"""The privacy core at work: a private mean, its certificate, and a budget that holds.

Run it with ``make demo``.
"""

from pathlib import Path

import torch

from botorch_dp import GDP, ApproxDP, Certificate, GaussianMechanism, Ledger
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.plots import plot_ledger
from botorch_dp.privacy import clip_rows

PICTURE = Path("build/demo_budget.png")


def main() -> None:
    # Private: 5,000 records of 3 numbers, one of them hostile.
    num_records, clip_norm = 5_000, 3.0
    population_mean = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    records = torch.randn(num_records, 3, dtype=torch.float64) + population_mean
    records[0] = torch.tensor([float("nan"), 1e30, 0.0])

    # Public: what may be spent in all, and how it is divided.
    budget = ApproxDP(epsilon=1.0, delta=1e-6)
    num_releases = 10
    ledger = Ledger(cap=budget)
    mechanism = GaussianMechanism(
        # mu^2 adds up, so ten releases of a tenth of the square fit exactly.
        GDP(budget.to_gdp().mu / num_releases**0.5),
        sensitivity=2 * clip_norm / num_records,
    )

    def private_mean() -> torch.Tensor:
        return mechanism.release(
            clip_rows(records, clip_norm).mean(dim=0), ledger=ledger
        )

    show("mean of the population", population_mean)
    show("private mean", private_mean())
    for _ in range(num_releases - 1):
        last = private_mean()
    show("private mean, the tenth", last)

    print("\nAn eleventh is refused:")
    try:
        private_mean()
    except BudgetExceededError as error:
        print(f"  {type(error).__name__}: {error}")

    print(f"\n{ledger}\n")
    print(Certificate.from_ledger(ledger, parameters={"clip_norm": clip_norm}))

    PICTURE.parent.mkdir(exist_ok=True)
    plot_ledger(ledger).figure.savefig(PICTURE, dpi=150)
    print(f"\nThe budget over time is drawn in {PICTURE}")


def show(label: str, values: torch.Tensor) -> None:
    print(f"{label:>24}: " + "  ".join(f"{value:+.4f}" for value in values.tolist()))


if __name__ == "__main__":
    main()
