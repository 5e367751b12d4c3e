"""Pictures of public state, on matplotlib axes (extra ``plots``).

Releases, what follows from them and what was spent may be drawn. Exact losses of
private records may not, not even their mean at a point that was released: a picture is
a release too. So nothing here takes losses, and how good a point is has to come from
the caller, who evaluates it on public data or pays for a release of it.
"""

from botorch_dp.plots.convergence import plot_convergence, plot_trace
from botorch_dp.plots.frontier import plot_frontier
from botorch_dp.plots.gradients import plot_gradient_posterior
from botorch_dp.plots.spending import plot_ledger
from botorch_dp.plots.streams import plot_dictionary_size, plot_stream

__all__ = [
    "plot_convergence",
    "plot_dictionary_size",
    "plot_frontier",
    "plot_gradient_posterior",
    "plot_ledger",
    "plot_stream",
    "plot_trace",
]
