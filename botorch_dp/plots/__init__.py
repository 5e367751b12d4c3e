"""Plots of public state on matplotlib axes (extra ``plots``).

A plot may show releases, results computed from them, and the spent budget. It must not
show exact losses of private records, not even their mean at a released point, because a
plot is also a release. Therefore no function here takes losses. To show the quality of
a point, the caller evaluates it on public data or pays for a release.
"""

from botorch_dp.plots.convergence import plot_convergence, plot_trace
from botorch_dp.plots.frontier import plot_frontier
from botorch_dp.plots.gradients import plot_gradient_posterior
from botorch_dp.plots.renyi import plot_renyi_curve
from botorch_dp.plots.search import plot_search
from botorch_dp.plots.spending import plot_ledger
from botorch_dp.plots.streams import plot_dictionary_size, plot_stream

__all__ = [
    "plot_convergence",
    "plot_dictionary_size",
    "plot_frontier",
    "plot_gradient_posterior",
    "plot_ledger",
    "plot_renyi_curve",
    "plot_search",
    "plot_stream",
    "plot_trace",
]
