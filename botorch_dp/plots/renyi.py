"""Plot of the Renyi curve of a history."""

from collections.abc import Iterable
from typing import Any

from botorch_dp.plots._common import finish, get_axes
from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.ledger import Ledger


def plot_renyi_curve(
    history: PrivacyAccountant | Ledger,
    *,
    orders: Iterable[float] | None = None,
    ax: Any = None,
) -> Any:
    """Draw the bounds on the Renyi divergences of everything that was released.

    Args:
        history: An accountant, or a ledger with all of its charges.
        orders: The orders, each above 1. By default many from 2 to 1024.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    ax = get_axes(ax, "plot_renyi_curve")
    accountant = history.accountant() if isinstance(history, Ledger) else history
    curve = accountant.to_rdp(orders)
    ax.loglog(
        [guarantee.order for guarantee in curve],
        [guarantee.epsilon for guarantee in curve],
        label="spent",
    )
    return finish(ax, "order", "Renyi epsilon")
