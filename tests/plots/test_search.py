"""What is drawn of a private search."""

import pickle
import warnings
from types import SimpleNamespace

import pytest
from matplotlib import pyplot
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from botorch_dp.plots import plot_ledger, plot_search

X, Y = make_classification(400, random_state=0)
TRAIN, PRIVATE = (X[:60], Y[:60]), {"X_val": X[60:], "y_val": Y[60:]}
pytestmark = pytest.mark.default_device


def fitted(estimator, space, guarantee, **kwargs):
    search = PrivateSearch(estimator, space, guarantee, random_state=0, **kwargs)
    with warnings.catch_warnings(action="ignore"):
        return search.fit(*TRAIN, **PRIVATE)


def lines_of(ax):
    return {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()}


def test_gradients_scores_and_budget():
    search = fitted(
        LogisticRegression(),
        {"C": (1e-3, 1e3, "log")},
        GDP(1.0),
        method="dp-gibo",
        num_steps=3,
        release_score=True,
        ledger=Ledger(cap=GDP(2.0)),
    )
    more = search.private_score(**PRIVATE, guarantee=GDP(0.5))
    parameter, score, budget = plot_search(search, scores=[more])
    values = [step["params"]["C"] for step in search.history_]
    drawn = lines_of(parameter)
    assert drawn["gradient steps"] == [[i + 1, value] for i, value in enumerate(values)]
    assert {y for _, y in drawn["released"]} == {search.best_params_["C"]}
    (bars,) = score.containers
    assert bars.lines[0].get_ydata().tolist() == [search.best_score_, more.score]
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    for (low, high), (mean, std) in zip(
        ends, [(search.best_score_, search.best_score_std_), more], strict=True
    ):
        assert (low, high) == pytest.approx((mean - 2 * std, mean + 2 * std))
    alone = plot_ledger(search.ledger)
    assert lines_of(budget) == lines_of(alone)
    assert len(budget.get_lines()[0].get_xdata()) == 1 + len(search.ledger.entries)


def test_candidates_where_parameters_are_set():
    space = {
        "kernel": ["linear", "rbf"],
        "gamma": Real(1e-3, 1.0, log=True, when={"kernel": "rbf"}),
    }
    search = fitted(
        SVC(), space, ApproxDP(1.0, 1e-6), method="stable", num_candidates=6
    )
    kernel, gamma, _ = plot_search(search)
    words = [text.get_text() for text in kernel.get_yticklabels()]
    steps = [step["params"] for step in search.history_]
    assert lines_of(kernel)["candidates"] == [
        [i + 1, words.index(params["kernel"])] for i, params in enumerate(steps)
    ]
    assert lines_of(gamma)["candidates"] == [
        [i + 1, params["gamma"]] for i, params in enumerate(steps) if "gamma" in params
    ]
    is_set = "gamma" in search.best_params_
    assert ("released" in lines_of(gamma)) == is_set
    assert gamma.get_title() == ("" if is_set else "not set in the result")


def test_stopped_and_resumed():
    search = fitted(
        LogisticRegression(),
        {"C": (1e-3, 1e3, "log")},
        GDP(1.0),
        method="dp-gibo",
        max_evaluations=8,
        max_fits=4,
    )
    assert search.stopped_ == "max_fits"
    before = len(lines_of(plot_search(search)[0])["gradient steps"])
    search.set_params(max_fits=None).resume(**PRIVATE)
    drawn = lines_of(plot_search(search)[0])["gradient steps"]
    assert before < len(drawn) == len(search.history_)


def test_points_that_stay_private():
    search = fitted(
        LogisticRegression(),
        {"C": (1e-3, 1e3, "log")},
        ApproxDP(1.0, 1e-6),
        method="kusner",
        num_candidates=6,
        num_steps=2,
        release_score=True,
        method_options={"correlation": 0.9},
    )
    parameter, score, _ = plot_search(search)
    assert [*lines_of(parameter)] == ["released"]
    assert score.containers[0].lines[0].get_ydata().tolist() == [search.best_score_]


def test_without_its_ledger_and_on_a_given_figure():
    search = fitted(
        LogisticRegression(), {"C": (0.1, 1.0)}, GDP(1.0), max_evaluations=6
    )
    fig = pyplot.figure()
    axes = plot_search(pickle.loads(pickle.dumps(search)), fig=fig)
    assert len(axes) == 1
    assert axes[0].figure is fig


def test_only_after_fit():
    for wrong in (PrivateSearch(SVC(), {"C": (0.1, 1.0)}, GDP(1.0)), SimpleNamespace()):
        with pytest.raises(InvalidArgumentError, match="a PrivateSearch after fit"):
            plot_search(wrong)
