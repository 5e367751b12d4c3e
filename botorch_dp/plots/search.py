"""Plot of a private search: what it asked, what it released, and what it spent."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

from botorch_dp._imports import import_extra
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.plots._common import finish
from botorch_dp.plots.spending import plot_ledger

# From this ratio on, positive numbers are drawn on a log scale.
_LOG_RATIO = 30.0
_PANELS_A_ROW = 3
_PANEL_SIZE = (3.6, 2.6)


def plot_search(
    search: Any, *, scores: Sequence[tuple[float, float]] = (), fig: Any = None
) -> list[Any]:
    """Draw a search: the points that it asked for, released scores and the budget.

    There is a panel for each parameter, with the candidates of a choice, the steps of
    gradients, and the released value. A parameter has no mark at points where it is
    not set. Then come the released scores, if there are any, each with two standard
    deviations of its noise, and the budget after each charge of the ledger. Everything
    that is drawn is public.

    Args:
        search: A :class:`~botorch_dp.integrations.sklearn.PrivateSearch` after
            ``fit``, also one that was stopped or resumed.
        scores: Further released scores with the standard deviations of their noise, as
            ``search.private_score`` returns them.
        fig: The matplotlib figure to draw on; None makes a new one.

    Returns:
        The axes: one for each parameter, one for scores if there are any, and one for
        the budget if the search knows its ledger. After ``pickle`` it does not, unless
        the ledger has a file.

    Example:
        >>> from botorch_dp.plots import plot_search
        >>> axes = plot_search(search)  # doctest: +SKIP
        >>> axes[0].figure.savefig("search.png")  # doctest: +SKIP
    """
    for name in ("history_", "best_params_"):
        if not hasattr(search, name):
            raise InvalidArgumentError(
                f"search must be a PrivateSearch after fit, got {search!r}."
            )
    steps = [(i, step) for i, step in enumerate(search.history_) if step["params"]]
    names = dict.fromkeys(
        name
        for _, step in [*steps, (0, {"params": search.best_params_})]
        for name in step["params"]
    )
    shown = _released_scores(search) + [
        (f"score {i + 1}", *s) for i, s in enumerate(scores)
    ]
    ledger = search._known_ledger()
    count = len(names) + bool(shown) + (ledger is not None)
    axes = _make_axes(fig, count)
    panels = iter(axes)
    for name in names:
        _draw_parameter(next(panels), name, steps, search)
    found: dict[str, Any] = {}
    for ax in axes[: len(names)]:
        found.update({line.get_label(): line for line in ax.get_lines()})
    # One legend for all parameters: in the panels it would hide points.
    axes[0].figure.legend(
        handles=found.values(), loc="outside upper center", ncols=len(found)
    )
    if shown:
        _draw_scores(next(panels), shown)
    if ledger is not None:
        plot_ledger(ledger, ax=next(panels)).legend(loc="lower right", fontsize=7)
    return axes


def _make_axes(fig: Any, count: int) -> list[Any]:
    columns = min(count, _PANELS_A_ROW)
    rows = math.ceil(count / columns)
    if fig is None:
        pyplot = import_extra("matplotlib.pyplot", extra="plots", purpose="plot_search")
        width, height = _PANEL_SIZE
        fig = pyplot.figure(
            figsize=(width * columns, height * rows), layout="constrained"
        )
    return [fig.add_subplot(rows, columns, i + 1) for i in range(count)]


def _released_scores(search: Any) -> list[tuple[str, float, float]]:
    if not hasattr(search, "best_score_"):
        return []
    std = search.best_score_std_
    return [("best_score_", search.best_score_, math.nan if std is None else std)]


def _draw_parameter(
    ax: Any, name: str, steps: list[tuple[int, Any]], search: Any
) -> None:
    """Draw the values of a parameter at all points where it is set."""
    best = search.best_params_
    known = [step["params"][name] for _, step in steps if name in step["params"]]
    known += [best[name]] if name in best else []
    height = _heights(ax, known)
    kinds = {
        "candidates": ({"marker": ".", "linestyle": "", "color": "0.6"}, False),
        "gradient steps": ({"marker": ".", "color": "tab:blue"}, True),
    }
    for label, (style, is_noisy) in kinds.items():
        found = [
            (number + 1, height(step["params"][name]))
            for number, step in steps
            if name in step["params"] and (step["noise_std"] > 0) == is_noisy
        ]
        if found:
            ax.plot(*zip(*found, strict=True), label=label, **style)
    if name in best:
        ax.axhline(
            height(best[name]), color="tab:red", linestyle="--", label="released"
        )
    else:
        ax.set_title("not set in the result", fontsize="small")
    ax.locator_params(axis="x", integer=True)
    ax.set_xlim(0, len(search.history_) + 1)
    finish(ax, "point", name, legend=False)


def _heights(ax: Any, known: list[Any]) -> Any:
    """Scale the axis for these values, and return where each of them is drawn."""
    is_number = [
        isinstance(value, numbers.Real) and not isinstance(value, bool)
        for value in known
    ]
    if all(is_number):
        if all(isinstance(value, numbers.Integral) for value in known):
            ax.locator_params(axis="y", integer=True)
        if min(known) > 0 and max(known) / min(known) > _LOG_RATIO:
            ax.set_yscale("log")
        return float
    words = list(dict.fromkeys(map(_word, known)))
    ax.set_yticks(range(len(words)), words)
    ax.set_ylim(-0.5, len(words) - 0.5)
    return lambda value: words.index(_word(value))


def _word(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:17]}..."


def _draw_scores(ax: Any, shown: list[tuple[str, float, float]]) -> None:
    labels, values, stds = zip(*shown, strict=True)
    places = range(len(shown))
    ax.errorbar(places, values, yerr=[2 * std for std in stds], fmt="o", capsize=4)
    ax.set_xticks(places, labels)
    ax.set_xlim(-0.5, len(shown) - 0.5)
    finish(ax, "", "score, with two standard\ndeviations of its noise", legend=False)
