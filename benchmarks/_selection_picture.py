"""The picture of the benchmark of private selection."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._common import RESULTS

PATH = RESULTS / "selection.png"
Curve = Sequence[tuple[float, float]]
THIN, THICK = 1.2, 2.2


def draw(
    counts: Mapping[str, Curve],
    bounds: Mapping[str, Curve],
    composed: Curve,
    *,
    target: tuple[float, float],
    path: Path = PATH,
) -> None:
    """Draw accuracies over epsilon.

    Args:
        counts: The curve of each kind of count, by the smallest bound.
        bounds: The curves of some counts by one bound each.
        composed: The curve of fixed numbers of composed runs.
        target: An epsilon and an accuracy to beat.
        path: The file to write.
    """
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 5), sharey=True, layout="constrained"
    )
    _draw_curves(left, counts)
    left.set_title("Counts, by the smallest bound")
    _draw_curves(right, bounds)
    right.set_title("Bounds")
    for axes in (left, right):
        axes.plot(*zip(*composed, strict=True), "k--", label="composed", lw=THICK)
        axes.plot(*target, "k*", ms=12, label="to beat")
        axes.set(xlim=(2.2, 12), ylim=(90, 96.2), xscale="log")
        axes.set_xlabel("epsilon (delta = 1e-5)")
        axes.set_xticks([2.5, 3, 4, 5, 6, 8, 10, 12], minor=False)
        axes.set_xticklabels(["2.5", "3", "4", "5", "6", "8", "10", "12"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="lower right", ncols=2)
    left.set_ylabel("expected accuracy of the selected run, %")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curves(axes: Any, curves: Mapping[str, Curve]) -> None:
    import matplotlib

    colors = matplotlib.colormaps["tab20"].colors
    for color, (name, curve) in zip(colors, curves.items(), strict=False):
        width = THICK if "at least" in name else THIN
        axes.plot(*zip(*curve, strict=True), color=color, label=name, lw=width)
