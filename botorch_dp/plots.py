"""Pictures of public state, on matplotlib axes (extra ``plots``).

Releases, what follows from them and what was spent may be drawn. Exact losses of
private records may not, not even their mean at a point that was released: a picture is
a release too. So nothing here takes losses, and how good a point is has to come from
the caller, who evaluates it on public data.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp._extras import import_extra
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.base import OptimizationResult, PrivateOptimizer, Step
from botorch_dp.optimizers.ldp_bo import LDPBO
from botorch_dp.privacy.accountant import PrivacyAccountant, budget_limit
from botorch_dp.privacy.guarantees import ApproxDP
from botorch_dp.privacy.ledger import DEFAULT_DELTA, Ledger

# Accounting for every prefix of a long history takes longer than anyone can see.
_MOST_POINTS = 100

# Whatever has a history, or a history itself.
Run = OptimizationResult | PrivateOptimizer | LDPBO | Sequence[Step]
Runs = Run | Sequence[Run]
# A true parameter, or what tells it for each step where it moves.
Truth = Tensor | Callable[[int], Tensor]


def plot_convergence(
    runs: Runs,
    evaluate: Callable[[Tensor], Any] | None = None,
    *,
    initial_x: Tensor | None = None,
    quantiles: tuple[float, float] = (0.0, 1.0),
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw how good the points of a run were, or where they were.

    Several runs give their mean and a band. Runs with different seeds show what noise
    does. On private data each costs its own budget; make such a picture with public or
    synthetic data.

    Args:
        runs: A result, an optimizer or a history, or several with equally many steps.
        evaluate: From ``T x d`` points to T values. **It must be public**: a score on
            public test data or a known function, never the loss on private records.
            None draws the coordinates of the points.
        initial_x: Where the runs started, a ``d`` tensor; drawn at 0 evaluations.
        quantiles: Of the runs, from where to where the band goes; by default from the
            lowest to the highest.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = _histories(runs)
    _check_quantiles(quantiles)
    start = [] if initial_x is None else [initial_x]
    points = [torch.stack([*start, *(s.x for s in steps)]) for steps in histories]
    counts = [[step.num_evaluations for step in steps] for steps in histories]
    evaluations = np.mean(counts, axis=0)  # of one step; Algorithm 2 may vary
    if initial_x is not None:
        evaluations = np.concatenate([[0.0], evaluations])
    ax = _axes(ax, "plot_convergence")
    if evaluate is None:
        coordinates = np.stack([X.detach().cpu().numpy() for X in points])  # R x T x d
        for index in range(coordinates.shape[-1]):
            name = f"$x_{{{index + 1}}}$" if label is None else f"{label} {index + 1}"
            _draw(ax, evaluations, coordinates[..., index], quantiles, name)
    else:
        values = np.stack([_evaluated(evaluate, X) for X in points])  # R x T
        _draw(ax, evaluations, values, quantiles, label)
    ax.set_xlabel("evaluations")
    ax.set_ylabel("released point" if evaluate is None else "value on public data")
    if evaluate is None or label is not None:
        ax.legend()
    return ax


def plot_stream(
    runs: Runs,
    truth: Truth | None = None,
    *,
    coordinate: int | None = None,
    quantiles: tuple[float, float] = (0.0, 1.0),
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw a parameter that follows a stream of users, or how far off it was.

    With a truth and no coordinate: the mean squared error per coordinate, on a log
    scale. Otherwise the parameter itself, one coordinate or all of them, and the truth
    as a dotted line. Replications give their mean and a band.

    Args:
        runs: A result, an optimizer or a history whose points are ``p`` or
            ``R x p`` tensors, such as those of :class:`LDPBO`; several, with the same
            steps, are further replications. A history may be made by hand, of averages
            for instance: its steps need a ``number`` and an ``x``.
        truth: The true parameter, a ``p`` tensor, or a function from the number of a
            user to it, such as ``optimal_x_at`` of a problem. **It must be public**:
            known for generated data, and otherwise not.
        coordinate: Which one, from 0.
        quantiles: Of the replications, from where to where the band goes; by default
            from the lowest to the highest.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = _histories(runs)
    _check_quantiles(quantiles)
    users = [step.number for step in histories[0]]
    if any([step.number for step in steps] != users for steps in histories):
        raise InvalidArgumentError("runs must have the same steps: these differ.")
    paths = torch.cat([_replications(steps) for steps in histories])  # R x T x p
    dim = paths.shape[-1]
    if coordinate is not None and coordinate not in range(dim):
        raise InvalidArgumentError(
            f"coordinate must be one of 0, ..., {dim - 1}, got {coordinate!r}."
        )
    true = None if truth is None else _truth(truth, users, dim)  # T x p
    ax = _axes(ax, "plot_stream")
    ax.set_xlabel("users")
    if true is not None and coordinate is None:
        errors = (paths - true).square().mean(dim=-1)
        _draw(ax, users, errors.numpy(), quantiles, label)
        ax.set_yscale("log")
        ax.set_ylabel("mean squared error")
        if label is not None:
            ax.legend()
        return ax
    for index in range(dim) if coordinate is None else [coordinate]:
        name = f"$x_{{{index + 1}}}$" if label is None else f"{label} {index + 1}"
        _draw(ax, users, paths[..., index].numpy(), quantiles, name)
    if true is not None:
        ax.plot(users, true[:, coordinate], color="k", linestyle=":", label="truth")
    ax.set_ylabel("parameter")
    ax.legend()
    return ax


def plot_trace(runs: Runs, *, label: str | None = None, ax: Any = None) -> Any:
    r"""Draw what each step leaves unknown of the gradient, beside its noise.

    The trace of the gradient's posterior covariance is the surrogate's expected squared
    error, if losses vary as the kernel says. The expected squared norm of the noise,
    :math:`d \sigma^2`, is what privacy adds: where it is far above the trace, more
    points a step would not help.

    Args:
        runs: A result, an optimizer or a history, or several with equally many steps,
            of optimizers with a surrogate. Several give their mean and range.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = _histories(runs)
    traces = [[step.trace for step in steps] for steps in histories]
    if any(trace is None for row in traces for trace in row):
        raise InvalidArgumentError(
            "runs must be of an optimizer with a surrogate, such as DPGIBO: these have "
            "no trace."
        )
    noise = np.array(
        [[len(s.x) * s.noise_std**2 for s in steps] for steps in histories]
    )
    ax = _axes(ax, "plot_trace")
    prefix = "" if label is None else f"{label}, "
    numbers = np.array([step.number for step in histories[0]])
    line = _draw(ax, numbers, np.array(traces), (0.0, 1.0), f"{prefix}surrogate")
    if noise.any():
        style = {"color": line.get_color(), "linestyle": "--"}
        ax.plot(numbers, noise.mean(axis=0), label=f"{prefix}noise", **style)
    ax.set_yscale("log")
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("step")
    ax.set_ylabel("squared error of the gradient")
    ax.legend()
    return ax


def plot_ledger(ledger: Ledger, *, delta: float | None = None, ax: Any = None) -> Any:
    """Draw what was spent after each charge, and the cap.

    Args:
        ledger: The ledger.
        delta: At which to draw epsilon. By default the unit of the ledger's cap is
            drawn, or epsilon at delta=1e-5 if it has none.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    ax = _axes(ax, "plot_ledger")
    cap = ledger.cap
    use_cap = cap is not None and delta is None
    entries = ledger.entries
    shown = set(np.linspace(0, len(entries), _MOST_POINTS + 1).round().astype(int))
    accountant, spent = PrivacyAccountant(), {0: 0.0}
    unit = "epsilon"
    for number, entry in enumerate(entries, start=1):
        accountant.compose(entry.event, entry.count)
        if number in shown:
            if use_cap and cap is not None:
                spending = accountant.spent_of(cap)
            else:
                spending = accountant.spent(delta or DEFAULT_DELTA)
            spent[number], unit = spending.amount, spending.unit
    ax.step(list(spent), list(spent.values()), where="post", label="spent")
    if use_cap and cap is not None:
        limit = budget_limit(cap)
        ax.axhline(limit, color="tab:red", linestyle="--", label=f"cap {cap!r}")
        delta = cap.delta if isinstance(cap, ApproxDP) else None
    elif delta is None:
        delta = DEFAULT_DELTA
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("charges")
    ax.set_ylabel(unit if delta is None else f"{unit} at delta={delta:.3g}")
    ax.set_ylim(bottom=0)
    ax.legend()
    return ax


def _axes(ax: Any, purpose: str) -> Any:
    if ax is not None:
        return ax
    pyplot = import_extra("matplotlib.pyplot", extra="plots", purpose=purpose)
    return pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1]


def _histories(runs: Runs) -> list[Sequence[Step]]:
    """Return the steps of each run: as many of each, and some."""
    if isinstance(runs, Sequence) and not any(isinstance(r, Step) for r in runs):
        several: list[Any] = list(runs)
    else:
        several = [runs]
    histories = [getattr(run, "history", run) for run in several]
    lengths = sorted({len(steps) for steps in histories})
    if len(lengths) != 1 or lengths[0] == 0:
        raise InvalidArgumentError(
            "runs must have steps, and all of them equally many, got "
            f"{lengths or 'no run'}."
        )
    return histories


def _check_quantiles(quantiles: tuple[float, float]) -> None:
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise InvalidArgumentError(
            f"quantiles must be two rising numbers within [0, 1], got {quantiles!r}."
        )


def _replications(steps: Sequence[Step]) -> Tensor:
    """Return the points of a run of R replications, ``R x T x p``."""
    points = [step.x.detach().cpu().double() for step in steps]
    return torch.stack([x.reshape(-1, x.shape[-1]) for x in points], dim=1)


def _truth(truth: Truth, users: list[int], dim: int) -> Tensor:
    """Return the true parameter at each of T steps, ``T x p``."""
    rows = [truth if isinstance(truth, Tensor) else truth(user) for user in users]
    for row in rows:
        if row.shape != (dim,):
            raise InvalidArgumentError(
                f"truth must be {dim} numbers, as many as the parameter has, got shape "
                f"{tuple(row.shape)}."
            )
    return torch.stack(rows).detach().cpu().double()


def _evaluated(evaluate: Callable[[Tensor], Any], X: Tensor) -> Any:
    values = torch.as_tensor(evaluate(X), dtype=torch.float64, device="cpu").detach()
    if values.shape != X.shape[:1]:
        raise InvalidArgumentError(
            f"evaluate must return {len(X)} values for {len(X)} points, got shape "
            f"{tuple(values.shape)}."
        )
    return values.numpy()


def _draw(
    ax: Any, x: Any, values: Any, quantiles: tuple[float, float], label: str | None
) -> Any:
    """Draw the mean over runs of ``R x T`` values, and a band if there are several."""
    (line,) = ax.plot(x, values.mean(axis=0), label=label)
    if len(values) > 1:
        low, high = np.quantile(values, quantiles, axis=0)
        ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return line
