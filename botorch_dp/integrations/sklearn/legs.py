"""The legs of a search: its fit, and continuations under further guarantees."""

import hashlib
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from botorch_dp.exceptions import (
    LostReleaseWarning,
    OptimizerStateError,
    SearchStoppedWarning,
)
from botorch_dp.integrations.sklearn.space import Params
from botorch_dp.integrations.sklearn.stages import StagedSearch
from botorch_dp.privacy import Guarantee, Ledger


@dataclass
class Leg:
    """One leg of a search: a fit, or a continuation.

    Attributes:
        guarantee: The guarantee of this leg.
        checkpoint: The file with its state, or None.
        checkpoint_before: The file of the leg before, which ends now, or None.
        number: The number of legs before it.
        first: The parameters to start from; None for the estimator's own.
        ledger: The ledger of the earlier legs, or None.
        state: A state in memory to continue from, or None.
        settings: The settings that the state belongs to, or None.
        history: The public steps of the earlier legs.
        num_fits: How many models they trained.
        is_timed: Whether the clock may have stopped one of them.
    """

    guarantee: Guarantee
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_before: str | os.PathLike[str] | None = None
    number: int = 0
    first: Params | None = None
    ledger: Ledger | None = None
    state: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    num_fits: int = 0
    is_timed: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is a fit, or the rest of one."""
        return self.number == 0

    def check_accounted(self, ledger: Ledger) -> None:
        """Raise if a ledger was lost, and with it the charges of later legs.

        What this leg has spent is in its checkpoint, and is charged again.

        Args:
            ledger: The ledger to charge.
        """
        later = part_of(self.checkpoint, 1)
        if not self.is_first or later is None or len(ledger):
            return
        if os.path.exists(later):
            raise OptimizerStateError(
                f"ledger has no charges, but checkpoint {os.fspath(later)!r} shows "
                "that this search was continued: what the continuations have spent "
                "would not be counted. Give the ledger that was charged. If it is "
                "lost, so is the count of what was spent on these records."
            )

    @property
    def is_new(self) -> bool:
        """Whether this begins with a fit, which forgets earlier ones."""
        return self.is_first and self.state is None


def warn_of_end(search: StagedSearch, stopped: str | None) -> None:
    """Say what the results of a search are if it did not go as planned.

    Args:
        search: The search, which has ended.
        stopped: Why it ended early, or None.
    """
    if stopped in ("timeout", "max_fits"):
        start = "" if search.num_released else ", here the starting parameters"
        warnings.warn(
            f"The search stopped early ({stopped}), after {search.num_released} "
            f"release(s). best_params_ are the best so far by what was released{start}."
            " resume(X_val=..., y_val=...) spends the rest of the budget.",
            SearchStoppedWarning,
            stacklevel=4,
        )
    if search.num_lost:
        warnings.warn(
            f"{search.num_lost} release(s) were paid for, and lost when the search was "
            "interrupted. The certificate counts them. They are not repeated.",
            LostReleaseWarning,
            stacklevel=4,
        )


def seeded(seed: int) -> torch.Generator:
    """Return a generator for experiments."""
    return torch.Generator(device="cpu").manual_seed(seed)


def fresh_seed(seed: int, num_charges: int) -> int:
    """Return the seed of noise that was not drawn before.

    A search that continues would otherwise draw the same noise again. Every draw comes
    after a charge, so the number of charges tells continuations apart.
    """
    text = f"{seed} after {num_charges} charges".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


def part_of(
    checkpoint: str | os.PathLike[str] | None, number: int
) -> str | os.PathLike[str] | None:
    """Return the file of a leg."""
    if checkpoint is None or number == 0:
        return checkpoint
    return f"{os.fspath(checkpoint)}.{number}"
