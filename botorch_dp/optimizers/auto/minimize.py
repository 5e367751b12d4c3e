"""Minimize a mean of private losses over a box: one call, one default."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine
from tqdm import tqdm

from botorch_dp._validation import check_callable
from botorch_dp.exceptions import InvalidArgumentError, WeakGuaranteeWarning
from botorch_dp.optimizers.auto.search_plan import SearchPlan, plan_search
from botorch_dp.optimizers.core.optimizer import OptimizationResult, Step
from botorch_dp.optimizers.core.search_box import SearchBox
from botorch_dp.optimizers.gibo.dp_gibo import DPGIBO
from botorch_dp.optimizers.release.private_bo import PrivateBO
from botorch_dp.privacy import Certificate, Guarantee, Ledger, PrivacyEvent
from botorch_dp.privacy.account import check_ledger
from botorch_dp.privacy.budget import (
    after_choice,
    check_affordable,
    warn_of_large_delta,
)

_ADJACENCY = "replace_one"
# At most so many points of a choice are evaluated together.
_BATCH = 25

Objective = Callable[[Tensor], Tensor]


def minimize(
    losses: Objective,
    bounds: Tensor,
    *,
    num_records: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float] | None = None,
    clip_norm: float | None = None,
    transform: str | Sequence[str] = "linear",
    max_evaluations: int | None = None,
    initial_x: Tensor | None = None,
    explore: bool | None = None,
    ledger: Ledger | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> OptimizationResult:
    """Minimize the mean of per-record losses under differential privacy.

    Chooses a method and all its settings from public facts alone
    (:mod:`botorch_dp.optimizers.auto.search_plan`), prints the plan, and runs it. The
    certificate says what was chosen.

    Args:
        losses: A function from ``b x d`` points to an ``n x b`` tensor of private
            losses, with the same record in row i in every call.
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of private records, which is public.
        guarantee: What the whole run has to meet. With ``PureDP`` one of many points is
            chosen; ``ApproxDP``, ``GDP`` and ``RDP`` allow gradients, which find better
            points.
        loss_range: The range ``(low, high)`` of a record's loss. It must be a property
            of the loss, not of the data. Losses outside are clipped where that matters.
        clip_norm: The bound on a record's gradient where the box is the unit cube, if
            losses have no known range.
        transform: ``"linear"`` or ``"log"``, for all or for each dimension.
        max_evaluations: How many points may be evaluated; never exceeded.
        initial_x: Where to start; the centre of the box by default. It must not depend
            on private data.
        explore: Whether a private choice among space-filling points comes before the
            gradients; by default where that was measured to pay: up to four dimensions.
        ledger: The ledger to charge; by default one with the guarantee as its cap.
        generator: Seeds the noise, for experiments only.
        progress: Whether to print the plan and show a progress bar.

    Returns:
        The point that was found (``x``), with its history and certificate; ``details``
        has the plan.

    Raises:
        BudgetExceededError: Before anything is evaluated, if the ledger cannot pay for
            the whole run. A run that was interrupted after its choice leaves a ledger
            that pays for the gradients only: ``DPGIBO`` with ``after_choice(guarantee,
            epsilon of the choice)`` can still use it.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> records = torch.rand(1000, 2, dtype=torch.float64)  # private
        >>> def losses(X):  # 1000 x b, between 0 and 1
        ...     return (records.unsqueeze(1) - X).square().mean(dim=-1)
        >>> result = minimize(
        ...     losses,
        ...     torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        ...     num_records=1000,
        ...     guarantee=ApproxDP(epsilon=1.0, delta=1e-5),
        ...     loss_range=(0.0, 1.0),
        ...     progress=False,
        ... )
        >>> result.x.shape, result.details["plan"]["method"]
        (torch.Size([2]), 'permute-and-flip, then dp-gibo')
    """
    check_callable(
        "losses", losses, expected="a function from points to an n x b tensor"
    )
    search_box = SearchBox(bounds, transform)
    if "identity" in search_box.transform:
        raise InvalidArgumentError(
            "transform must be 'linear' or 'log' in every dimension, got "
            f"{transform!r}."
        )
    plan = plan_search(
        num_records=num_records,
        dim=search_box.dim,
        guarantee=guarantee,
        loss_range=loss_range,
        clip_norm=clip_norm,
        max_evaluations=max_evaluations,
        explore=explore,
    )
    warn_of_large_delta(guarantee, num_records)
    check_ledger("ledger", ledger, optional=True)
    run = _PlannedRun(
        plan,
        search_box,
        num_records,
        loss_range,
        clip_norm,
        initial_x,
        Ledger(cap=guarantee) if ledger is None else ledger,
        generator,
    )
    if progress:
        print(plan)
    with tqdm(
        total=plan.num_evaluations,
        desc="minimize",
        unit="point",
        disable=not progress,
    ) as bar:

        def counted(X: Tensor) -> Tensor:
            found = losses(X)
            if not isinstance(found, Tensor):  # chunks would be evaluated again
                raise InvalidArgumentError(
                    "losses must return an n x b tensor, one row for each record, got "
                    f"a {type(found).__name__}. DPGIBO takes losses in chunks."
                )
            bar.update(len(X))
            return found

        return run(counted)


class _PlannedRun:
    """The stages of a plan, in one ledger that was asked for all of them."""

    def __init__(
        self,
        plan: SearchPlan,
        search_box: SearchBox,
        num_records: int,
        loss_range: tuple[float, float] | None,
        clip_norm: float | None,
        initial_x: Tensor | None,
        ledger: Ledger,
        generator: torch.Generator | None,
    ) -> None:
        self._plan, self._box, self._loss_range = plan, search_box, loss_range
        self._clip_norm = clip_norm
        self._shared: dict[str, Any] = {
            "num_records": num_records,
            "transform": search_box.transform,
            "ledger": ledger,
            "generator": generator,
        }
        start = search_box.box.mean(dim=0)
        if initial_x is not None:
            initial_x = search_box.check_inside("initial_x", initial_x)
            start = search_box.to_search(initial_x)
        self._start = search_box.from_search(search_box.project(start))
        # Errors in the settings, and a ledger that cannot pay, come before the losses.
        self._choice = None if plan.choice is None else self._make_choice()
        self._descent = None
        if plan.descent is not None:
            self._descent = self._make_descent(self._start)
        costs: list[tuple[PrivacyEvent, int]] = []
        for stage in (self._choice, self._descent):
            costs += [] if stage is None else stage.planned_releases()
        check_affordable(ledger, costs, _ADJACENCY)

    def __call__(self, losses: Objective) -> OptimizationResult:
        start, runs = self._start, list[str]()
        history: tuple[Step, ...] = ()
        last: PrivateBO | DPGIBO | None = None
        if self._choice is not None:
            last = self._choice
            chosen = last.run(losses, progress=False)
            start, history, runs = chosen.x, chosen.history, last.account.runs
        if self._descent is not None:
            last = self._descent if last is None else self._make_descent(start)
            last.run(losses, progress=False)
        assert last is not None
        result = last.result()
        if last is not self._choice:
            num_points = history[-1].num_evaluations if history else 0
            history += tuple(
                replace(
                    step,
                    number=step.number + len(history),
                    num_evaluations=step.num_evaluations + num_points,
                )
                for step in result.history
            )
        return replace(
            result,
            x=result.average,
            history=history,
            certificate=self._certificate(last.certificate(with_runs=runs)),
            details={**result.details, "plan": self._plan.to_dict()},
        )

    def _certificate(self, certificate: Certificate) -> Certificate:
        plan = self._plan
        chosen: dict[str, Any] = {
            "method": f"minimize: {plan.method}",
            "reason": plan.reason,
            "num_evaluations": plan.num_evaluations,
            "loss_range": None if self._loss_range is None else [*self._loss_range],
            "budget": repr(plan.guarantee),
        }
        if plan.choice is not None:
            chosen["num_candidates"] = plan.num_candidates
            chosen["choice_epsilon"] = float(f"{plan.choice.epsilon:.6g}")
        return replace(certificate, parameters={**certificate.parameters, **chosen})

    def _make_choice(self) -> PrivateBO:
        count = self._plan.num_candidates
        size = next(size for size in range(_BATCH, 0, -1) if count % size == 0)
        with torch.device("cpu"):
            sobol = SobolEngine(self._box.dim, scramble=True, seed=0)
            points = sobol.draw(count - 1, dtype=torch.float64)
        low, high = self._box.box
        spread = low + (high - low) * points.to(self._box.bounds)
        candidates = torch.cat([self._start[None], self._box.from_search(spread)])
        assert self._loss_range is not None
        assert self._plan.choice is not None
        return PrivateBO(
            candidates=candidates,
            guarantee=self._plan.choice,
            num_steps=count // size,
            batch_size=size,
            loss_range=self._loss_range,
            output="point",
            scoring="evaluated",
            **self._shared,
        )

    def _make_descent(self, start: Tensor) -> DPGIBO:
        plan, guarantee = self._plan, self._plan.guarantee
        if plan.choice is not None:
            guarantee = after_choice(guarantee, plan.choice.epsilon)
        with warnings.catch_warnings():  # minimize has warned, at the caller's line
            warnings.simplefilter("ignore", WeakGuaranteeWarning)
            return DPGIBO(
                self._box.bounds,
                guarantee=guarantee,
                loss_range=self._loss_range,
                clip_norm=self._clip_norm,
                max_evaluations=plan.descent_evaluations,
                initial_x=start,
                **self._shared,
            )
