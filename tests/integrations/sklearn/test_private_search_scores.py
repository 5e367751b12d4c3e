"""Searches by AUC, F1, precision and recall, from beginning to end."""

import math

import numpy as np
import pytest
from sklearn import metrics

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    SearchStoppedWarning,
)
from botorch_dp.integrations.sklearn import PrivateSearch, roc_auc
from tests.integrations.sklearn.columns import Column

pytestmark = pytest.mark.default_device
RNG = np.random.default_rng(0)
NAMES = ("roc_auc", "f1", "precision", "recall")
SPACE = {"column": [0, 1, 2, 3]}
N, BEST, PLENTY = 800, 2, PureDP(50.0)
y = (RNG.random(900) < 0.2).astype(int)
X = RNG.normal(-0.7, 1.0, size=(900, 4)) + np.outer(y, [0.3, 0.5, 2.5, 0.0])
TRAIN, PRIVATE = (X[N:], y[N:]), {"X_val": X[:N], "y_val": y[:N]}


def search_of(scoring="roc_auc", guarantee=PLENTY, **settings):
    settings = {"random_state": 0, **settings}
    return PrivateSearch(Column(), SPACE, guarantee, scoring=scoring, **settings)


def exact(name, column=BEST):
    if name == "roc_auc":
        return metrics.roc_auc_score(y[:N], X[:N, column])
    score = getattr(metrics, f"{name}_score")
    return score(y[:N], X[:N, column] > 0)


@pytest.mark.parametrize("method", ["auto", "stable"])
@pytest.mark.parametrize("name", NAMES)
def test_finds_the_best_and_its_score(name, method):
    search = search_of(name, method=method, release_score=True).fit(*TRAIN, **PRIVATE)
    assert search.best_params_ == {"column": BEST}
    assert search.best_score_ == pytest.approx(exact(name), abs=0.05)
    assert search.num_fits_ == 4 == len(search.history_)
    shown = search.certificate_
    assert shown.num_releases == 2
    assert shown.parameters["scoring"] == name
    assert "worst case" in str(shown)
    assert shown.epsilons[1e-5] <= 50.0


@pytest.mark.parametrize(
    "guarantee", [ApproxDP(1.0, 1e-6), GDP(1.0), PureDP(1.0)], ids=repr
)
def test_the_plan_is_a_choice(guarantee):
    search = search_of(guarantee=guarantee).fit(*TRAIN, **PRIVATE)
    assert search.plan_.method == "permute-and-flip"
    assert search.plan_.choice == guarantee.to_pure()
    assert "roc_auc is not a mean over records" in search.plan_.reason
    assert search.certificate_.num_releases == 1


def test_class_counts():
    counts = (int((y[:N] == 0).sum()), int(y[:N].sum()))
    search = search_of(roc_auc(class_counts=counts)).fit(*TRAIN, **PRIVATE)
    assert search.best_params_ == {"column": BEST}
    assert "NOT worst case" in str(search.certificate_)
    with pytest.raises(InvalidArgumentError, match="class_counts must be the numbers"):
        search_of(roc_auc(class_counts=(1, 2))).fit(*TRAIN, **PRIVATE)


def test_refused():
    for settings, match in [
        ({"method": "dp-gibo", "guarantee": GDP(1.0)}, "ranking_accuracy"),
        ({"method": "stable", "num_steps": 2}, "num_steps must be None"),
        ({"loss_range": (0.0, 1.0)}, "loss_range must be None"),
        ({"method": "stable", "method_options": {"output": "both"}}, "must not cont"),
        ({"method": "stable", "method_options": {"beta": 1.0}}, "TallyChoice"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            search_of(**settings).fit(*TRAIN, **PRIVATE)


class TestPrivateScore:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("guarantee", [PureDP(4.0), GDP(2.0)], ids=repr)
    def test_pays(self, name, guarantee):
        ledger = Ledger()
        search = search_of(name, ledger=ledger).fit(*TRAIN, **PRIVATE)
        found = search.private_score(**PRIVATE, guarantee=guarantee)
        assert found.score != exact(name)
        assert found.score == pytest.approx(exact(name), abs=12 * found.noise_std)
        assert found.noise_std < 0.02
        assert len(ledger) == 2 == search.certificate_.num_releases

    def test_of_class_counts(self):
        counts = (int((y[:N] == 0).sum()), int(y[:N].sum()))
        search = search_of("roc_auc", ledger=Ledger()).fit(*TRAIN, **PRIVATE)
        search.set_params(scoring=roc_auc(class_counts=counts))
        found = search.private_score(**PRIVATE, guarantee=PureDP(1.0))
        # The sensitivity is one over the number of records of the rarer class.
        assert found.noise_std == pytest.approx(math.sqrt(2) / min(counts))
        assert "NOT worst case" in str(search.certificate_)

    def test_refused_before_anything_is_scored(self):
        search = search_of(ledger=Ledger(cap=PureDP(50.0))).fit(*TRAIN, **PRIVATE)
        with pytest.raises(BudgetExceededError):
            search.private_score(**PRIVATE, guarantee=PureDP(1.0))


class TestBadRecords:
    @pytest.mark.parametrize("name", NAMES)
    def test_say_nothing(self, name, capfd):
        inputs, labels = X[:N].copy(), y[:N].astype(object)
        inputs[0], inputs[1, 0], labels[2] = 99, np.nan, "perhaps"
        search = search_of(name, release_score=True, verbose=0)
        search.fit(*TRAIN, X_val=inputs, y_val=labels)
        assert search.best_params_ == {"column": BEST}
        assert "".join(capfd.readouterr()) == ""


@pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.SearchStoppedWarning")
class TestEarlyEnd:
    def test_checkpoint(self, tmp_path):
        path = tmp_path / "search"
        settings = {"release_score": True, "checkpoint": path}
        first = search_of(**settings).fit(*TRAIN, **PRIVATE)
        again = search_of(**settings).fit(*TRAIN, **PRIVATE)
        assert again.best_params_ == first.best_params_
        assert again.best_score_ == first.best_score_
        assert len(Ledger(f"{path}.ledger")) == 2

    def test_limit(self, tmp_path):
        path = tmp_path / "search"
        with pytest.warns(SearchStoppedWarning):
            search = search_of(timeout=1e-9, checkpoint=path).fit(*TRAIN, **PRIVATE)
        assert search.stopped_ == "timeout"
        assert len(Ledger(f"{path}.ledger")) == 0
        search = search_of(checkpoint=path).fit(*TRAIN, **PRIVATE)
        assert search.best_params_ == {"column": BEST}

    def test_resumed_with_more(self):
        ledger = Ledger(cap=PureDP(100.0))
        search = search_of(ledger=ledger).fit(*TRAIN, **PRIVATE)
        search.resume(**PRIVATE, guarantee=PureDP(50.0))
        assert search.best_params_ == {"column": BEST}
        assert search.certificate_.num_releases == 2
