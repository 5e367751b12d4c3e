"""Plot of the spent budget and the cap of a ledger."""

from typing import Any

from botorch_dp.plots._common import finish, get_axes
from botorch_dp.privacy.accountant import budget_limit
from botorch_dp.privacy.guarantees import ApproxDP
from botorch_dp.privacy.ledger import DEFAULT_DELTA, Ledger
from botorch_dp.privacy.ledger_summary import spending_over_time

# The most points to draw: accounting for every prefix of a long history is slow.
_MOST_POINTS = 100


def plot_ledger(ledger: Ledger, *, delta: float | None = None, ax: Any = None) -> Any:
    """Draw the spent budget after each charge, and the cap.

    With partitions, it is that of a record of the partition that has spent most.

    Args:
        ledger: The ledger.
        delta: The delta at which to draw epsilon. By default the plot uses the unit of
            the ledger's cap, or epsilon at delta=1e-5 if it has no cap.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    ax = get_axes(ax, "plot_ledger")
    cap = ledger.cap
    use_cap = cap is not None and delta is None
    measure = cap if use_cap and cap is not None else delta or DEFAULT_DELTA
    spent, unit = {0: 0.0}, "epsilon"
    for number, spending in spending_over_time(
        ledger.entries, measure, most_points=_MOST_POINTS
    ):
        spent[number], unit = spending.amount, spending.unit
    ax.step(list(spent), list(spent.values()), where="post", label="spent")
    if use_cap and cap is not None:
        limit = budget_limit(cap)
        ax.axhline(limit, color="tab:red", linestyle="--", label=f"cap {cap!r}")
        delta = cap.delta if isinstance(cap, ApproxDP) else None
    elif delta is None:
        delta = DEFAULT_DELTA
    ax.locator_params(axis="x", integer=True)
    ax.set_ylim(bottom=0)
    return finish(
        ax, "charges", unit if delta is None else f"{unit} at delta={delta:.3g}"
    )
