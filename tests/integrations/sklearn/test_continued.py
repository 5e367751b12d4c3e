"""Searches that end early and continue, and scores that are paid for."""

import math
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LostReleaseWarning,
    OptimizerStateError,
    SearchStoppedWarning,
    UnpaidReleaseWarning,
)
from botorch_dp.integrations.sklearn import stopping
from botorch_dp.privacy import Declaration, GaussianMechanism, PermuteAndFlipMechanism
from tests.integrations.sklearn.constant import X_TRAIN, Y_TRAIN
from tests.integrations.sklearn.interrupted import (
    BUDGET,
    SEARCHES,
    Failing,
    N,
    fit,
    private,
    search_of,
    whole,
)

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.SearchStoppedWarning"),
]
KINDS = [*SEARCHES]
START = {"level": 0.5}


def releases_before(kind, num_models):
    """How many releases there are if no more than so many models are trained."""
    sizes = SEARCHES[kind][1]
    return sum(sum(sizes[: i + 1]) <= num_models for i in range(len(sizes)))


class TestStopped:
    @pytest.mark.parametrize("kind", KINDS)
    def test_after_any_number_of_models(self, kind):
        expected = whole(kind)
        total = sum(SEARCHES[kind][1])
        first = SEARCHES[kind][1][0]
        for max_fits in range(first, total + 1):
            ledger = Ledger(cap=BUDGET)
            search = fit(search_of(kind, ledger=ledger, max_fits=max_fits))
            done = releases_before(kind, max_fits)
            assert search.stopped_ == (None if max_fits == total else "max_fits")
            assert search.num_fits_ <= max_fits
            assert len(ledger) == search.certificate_.num_releases == done
            assert search.history_ == expected.history_[: len(search.history_)]
            assert hasattr(search, "best_score_") == (
                kind == "both" and max_fits == total
            )
            assert search.best_estimator_.level == search.best_params_["level"]
        assert search.best_params_ == expected.best_params_

    def test_best_parameters_are_what_was_released(self):
        """The mean of the later iterates, the choice, or the start."""
        search = fit(search_of(max_fits=4))
        assert len(search.history_) == 2
        assert search.best_params_ == search.history_[1]["params"]
        chosen = fit(search_of("both", max_fits=5))
        assert chosen.best_params_ in [row["params"] for row in chosen.history_]
        assert len(chosen.history_) == 4
        # With plenty of budget, not the start but the best of the candidates.
        good = fit(search_of("both", ApproxDP(1e4, 1e-6), max_fits=5), **private(-0.9))
        assert good.best_params_["sign"] == "minus"

    @pytest.mark.parametrize("kind", KINDS)
    def test_by_the_clock(self, kind, monkeypatch):
        """Every model takes a second; the clock is read between models."""
        total, first = sum(SEARCHES[kind][1]), SEARCHES[kind][1][0]
        monkeypatch.setattr(stopping, "now", lambda: float(Failing.num_fits))
        for timeout in range(1, total + 1):
            Failing.fail(None)
            search = search_of(kind, timeout=timeout, ledger=Ledger(cap=BUDGET))
            if timeout == total:  # not read once all models are trained
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    assert fit(search).stopped_ is None
                continue
            with pytest.warns(SearchStoppedWarning, match="stopped early.*timeout"):
                fit(search)
            if timeout < first:  # nothing was released, nothing was paid for
                assert search.best_params_["level"] == 0.5
                assert search.history_ == []
                assert search.certificate_.num_releases == 0
                assert set(search.certificate_.epsilons.values()) == {0.0}
            assert search.num_fits_ == timeout
            text = str(search.certificate_)
            assert "stopped=timeout" in text
            assert "the search has a timeout" in text
            assert "worst case over all neighbouring data sets" in text
            assert search.predict(X_TRAIN).shape == (20,)

    def test_the_assumption_about_time_is_stated_for_timeouts_alone(self):
        assert "timeout" not in str(whole().certificate_)
        assert "has a timeout" in str(whole(timeout=1e6).certificate_)

    @pytest.mark.parametrize("guarantee", [None, GDP(1.0)])
    def test_the_assumption_about_time_stays(self, guarantee, monkeypatch):
        Failing.fail(None)
        monkeypatch.setattr(stopping, "now", lambda: float(Failing.num_fits))
        search = search_of("both", timeout=5, ledger=Ledger(cap=GDP(9.0)))
        with pytest.warns(SearchStoppedWarning):
            fit(search)
        search.set_params(timeout=None).resume(**private(), guarantee=guarantee)
        assert search.stopped_ is None
        assert "has a timeout" in str(search.certificate_)

    def test_too_few_models(self):
        ledger = Ledger(cap=BUDGET)
        search = search_of("choice", max_fits=3, ledger=ledger)
        with pytest.raises(InvalidArgumentError, match="max_fits must be at least 4"):
            fit(search)
        assert len(ledger) == 0

    @pytest.mark.parametrize("name", ["timeout", "checkpoint"])
    def test_not_where_points_are_private(self, name, tmp_path):
        value = {"timeout": 10.0, "checkpoint": tmp_path / "file"}[name]
        search = search_of(
            "choice",
            method="kusner",
            method_options={"correlation": 0.9},
            **{name: value},
        )
        with pytest.raises(InvalidArgumentError, match=f"{name} must be None with"):
            fit(search)
        assert not (tmp_path / "file").exists()

    @pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.UselessReleaseWarning")
    def test_private_points_may_have_few_models(self):
        options = {"correlation": 0.9}
        search = search_of(
            "choice",
            method="kusner",
            method_options=options,
            max_fits=3,
            num_candidates=20,
        )
        with pytest.warns(SearchStoppedWarning):
            fit(search)
        assert search.best_params_ == START
        assert [row["params"] for row in search.history_] == [None] * 3
        with pytest.raises(InvalidArgumentError, match="guarantee must be given"):
            search.resume(**private())

    def test_workers(self, monkeypatch):
        times = iter(range(100))
        monkeypatch.setattr(stopping, "now", lambda: float(next(times)))
        search = fit(search_of("choice", timeout=3, n_jobs=2, num_candidates=8))
        assert search.stopped_ == "timeout"
        assert 1 <= search.num_fits_ < 8


class TestFailed:
    @pytest.mark.parametrize("when", ["fit", "predict"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_after_any_number_of_models(self, kind, when):
        expected = whole(kind)
        for at in range(1, sum(SEARCHES[kind][1]) + 1):
            ledger = Ledger(cap=BUDGET)
            search = search_of(kind, ledger=ledger)
            Failing.fail(at, KeyboardInterrupt, when)
            with pytest.raises(KeyboardInterrupt, match=f"while it {when}s"):
                fit(search)
            done = releases_before(kind, at - 1)
            assert search.stopped_ == "interrupted"
            assert len(ledger) == done == search.certificate_.num_releases
            assert search.num_fits_ == at - 1
            assert hasattr(search, "best_estimator_") == (done > 0)
            assert search.history_ == expected.history_[: len(search.history_)]

    def test_errors(self):
        Failing.fail(5, FloatingPointError)
        search = search_of()
        with pytest.raises(FloatingPointError):
            fit(search)
        assert search.stopped_ == "error"
        assert len(search.history_) == 2
        assert search.best_estimator_.level == search.best_params_["level"]

    def test_an_error_of_the_refit_does_not_hide_the_first(self, monkeypatch):
        class Broken(Failing):
            def fit(self, X, y):
                if Failing.num_fits >= 4:
                    Failing.num_fits += 1
                    raise FloatingPointError(f"model {Failing.num_fits}")
                Failing.num_fits += 1
                return self

        Failing.fail(None)
        search = search_of().set_params(estimator=Broken())
        with pytest.raises(FloatingPointError, match="model 5"):
            fit(search)
        assert search.stopped_ == "error"
        assert search.best_params_
        assert not hasattr(search, "best_estimator_")

    @pytest.mark.parametrize("kind", KINDS)
    def test_paid_for_and_lost(self, kind, monkeypatch):
        """An interruption between the charge and the draw, of any release."""
        for lost in range(len(SEARCHES[kind][1])):
            count = []

            def failing(self, value, *, draw, lost=lost, count=count):
                count.append(0)
                if len(count) == lost + 1:
                    raise KeyboardInterrupt
                return draw(self, value)

            with monkeypatch.context() as patch:
                for mechanism in (GaussianMechanism, PermuteAndFlipMechanism):
                    draw = mechanism._draw
                    patch.setattr(
                        mechanism,
                        "_draw",
                        lambda self, value, draw=draw, failing=failing: failing(
                            self, value, draw=draw
                        ),
                    )
                ledger = Ledger(cap=BUDGET)
                search = search_of(kind, ledger=ledger)
                with (
                    pytest.raises(KeyboardInterrupt),
                    pytest.warns(LostReleaseWarning, match=r"1 release\(s\) were paid"),
                ):
                    fit(search)
                assert len(ledger) == lost + 1 == search.certificate_.num_releases
                assert "lost_releases=1" in str(search.certificate_)
                with pytest.warns(LostReleaseWarning):
                    search.resume(**private())
            # What was lost is neither repeated nor hidden.
            assert len(ledger) == len(SEARCHES[kind][1])
            assert search.stopped_ is None
            assert "lost_releases=1" in str(search.certificate_)
            if kind == "choice":
                assert search.best_params_ == START
            assert hasattr(search, "best_score_") == (kind == "both" and lost < 4)


class TestResume:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_rest_of_the_budget(self, kind):
        """In as many parts as there are releases."""
        sizes = SEARCHES[kind][1]
        ledger = Ledger(cap=BUDGET)
        search = fit(search_of(kind, ledger=ledger, max_fits=max(sizes[0], 2)))
        while search.stopped_ is not None:
            before = search.num_fits_
            search.resume(**private())
            assert search.num_fits_ > before
        assert len(ledger) == len(sizes)
        assert len(search.history_) == len(whole(kind).history_)
        assert hasattr(search, "best_score_") == (kind == "both")
        expected = whole(kind).certificate_
        assert search.certificate_.epsilons == expected.epsilons
        with pytest.raises(InvalidArgumentError, match="guarantee must be given"):
            search.resume(**private())

    @pytest.mark.parametrize(
        "changed", [{"loss_range": (0.0, 3.0)}, {"max_evaluations": 7}]
    )
    def test_not_with_other_settings(self, changed):
        search = fit(search_of(max_fits=SEARCHES[KINDS[0]][1][0]))
        assert search.stopped_ == "max_fits"
        before, ledger = search.get_params(deep=False), search.certificate_.num_releases
        search.set_params(**changed, max_fits=None)
        with pytest.raises(OptimizerStateError, match="settings were others: "):
            search.resume(**private())
        assert search.certificate_.num_releases == ledger
        search.set_params(**{name: before[name] for name in changed})
        assert search.resume(**private()).stopped_ is None

    def test_no_noise_is_drawn_twice(self, monkeypatch):
        drawn = []
        draw = GaussianMechanism._draw

        def spy(self, value):
            found = draw(self, value)
            drawn.append(((found - value) / self.noise_std).tolist())
            return found

        monkeypatch.setattr(GaussianMechanism, "_draw", spy)
        search = fit(search_of("both", ledger=Ledger(cap=GDP(9.0)), max_fits=4))
        search.set_params(max_fits=2)
        search.resume(**private())
        search.set_params(max_fits=None)
        search.resume(**private())
        for _ in range(2):
            search.resume(**private(), guarantee=GDP(1.0))
            search.private_score(**private(), guarantee=GDP(1.0))
        values = [value for row in drawn for value in row]
        assert len(values) > 12
        assert len({round(value, 9) for value in values}) == len(values)

    def test_more_of_the_cap(self):
        ledger = Ledger(cap=GDP(math.sqrt(3.0)))
        search = whole(guarantee=GDP(1.0), ledger=ledger)
        for number in (2, 3):  # and the cap is used up
            before = search.history_
            search.resume(**private(), guarantee=GDP(1.0))
            assert len(search.history_) == 3 * number
            assert search.history_[: len(before)] == before
        assert search.num_fits_ == 18
        assert len(ledger) == 9
        assert search.certificate_.guarantee.mu == pytest.approx(math.sqrt(3.0))
        assert search.certificate_.epsilons[1e-5] == pytest.approx(ledger.spent(1e-5))
        before, results = Failing.num_fits, dict(vars(search))
        with pytest.raises(BudgetExceededError):
            search.resume(**private(), guarantee=GDP(0.01))
        assert Failing.num_fits == before  # refused before anything was trained
        assert vars(search) == results

    def test_starts_at_the_best_parameters(self):
        ledger = Ledger(cap=PureDP(2.0))
        search = whole("choice", guarantee=PureDP(1.0), ledger=ledger)
        start = search.best_params_
        search.resume(**private(), guarantee=PureDP(1.0))
        assert search.history_[4]["params"] == start
        assert len(ledger) == 2
        with pytest.raises(BudgetExceededError):
            search.resume(**private(), guarantee=PureDP(1e-6))

    def test_an_earlier_score_does_not_stay(self):
        ledger = Ledger(cap=GDP(9.0))
        settings = {"release_score": True, "max_evaluations": 7}
        search = whole(guarantee=GDP(1.0), ledger=ledger, **settings)
        assert hasattr(search, "best_score_")
        search.set_params(release_score=False)
        search.resume(**private(), guarantee=GDP(1.0))
        assert not hasattr(search, "best_score_")

    def test_a_continuation_that_is_stopped(self):
        ledger = Ledger(cap=GDP(9.0))
        search = whole(guarantee=GDP(1.0), ledger=ledger)
        search.set_params(max_fits=2).resume(**private(), guarantee=GDP(1.0))
        assert (search.stopped_, len(search.history_)) == ("max_fits", 4)
        search.set_params(max_fits=None).resume(**private())
        assert (search.stopped_, len(search.history_)) == (None, 6)
        assert search.num_fits_ == 12

    def test_a_cap_without_room(self):
        search = whole()
        with pytest.raises(BudgetExceededError):
            search.resume(**private(), guarantee=ApproxDP(0.1, 1e-7))

    def test_after_a_pickle(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger", cap=GDP(3.0))
        search = whole(guarantee=GDP(1.0), ledger=ledger)
        loaded = pickle.loads(pickle.dumps(search))
        with pytest.raises(InvalidArgumentError, match="resume needs X and y"):
            loaded.resume(**private(), guarantee=GDP(1.0))
        loaded.resume(X=X_TRAIN, y=Y_TRAIN, **private(), guarantee=GDP(1.0))
        assert len(ledger) == 6
        lost = pickle.loads(pickle.dumps(fit(search_of())))
        with pytest.raises(InvalidArgumentError, match="its ledger was in memory"):
            lost.resume(X=X_TRAIN, y=Y_TRAIN, **private(), guarantee=GDP(1.0))

    def test_before_fit(self):
        with pytest.raises(NotFittedError):
            search_of().resume(**private(), guarantee=BUDGET)
        with pytest.raises(NotFittedError):
            search_of().private_score(**private(), guarantee=BUDGET)

    def test_training_records_are_refused(self):
        search = whole(guarantee=GDP(1.0), ledger=Ledger(cap=GDP(9.0)))
        for call in (search.resume, search.private_score):
            with pytest.raises(InvalidArgumentError, match="not trained on"):
                call(X_val=X_TRAIN, y_val=Y_TRAIN, guarantee=GDP(1.0))

    def test_clones_know_nothing(self):
        copied = clone(whole(guarantee=GDP(1.0), ledger=Ledger(cap=GDP(9.0))))
        assert not hasattr(copied, "stopped_")
        with pytest.raises(NotFittedError):
            copied.resume(**private(), guarantee=GDP(1.0))

    def test_a_guarantee_that_is_none(self):
        with pytest.raises(InvalidArgumentError, match="guarantee must be a PureDP"):
            whole().resume(**private(), guarantee=1.0)


class TestPrivateScore:
    @pytest.mark.parametrize(
        ("guarantee", "std"),
        [
            (PureDP(2.0), math.sqrt(2) * 4 / N / 2.0),
            (GDP(2.0), 4 / N / 2.0),
        ],
    )
    def test_pays(self, guarantee, std):
        ledger = Ledger()
        search = whole(guarantee=GDP(1.0), ledger=ledger)
        data = private()
        found = search.private_score(**data, guarantee=guarantee)
        model = search.best_estimator_
        exact = -np.square(model.predict(data["X_val"]) - data["y_val"]).mean()
        assert found.noise_std == pytest.approx(std)
        assert found.score != exact
        assert found.score == pytest.approx(exact, abs=12 * std)
        assert len(ledger) == 4 == search.certificate_.num_releases
        assert search.certificate_.epsilons[1e-5] == pytest.approx(ledger.spent(1e-5))
        assert "NOT protected" in str(search.certificate_)
        assert "worst case" in str(search.certificate_)

    def test_refused_before_anything_is_scored(self):
        search = whole()
        Failing.fail(0, RuntimeError, "predict")  # would show on private records
        with pytest.raises(BudgetExceededError):
            search.private_score(**private(), guarantee=BUDGET)
        assert Failing.at == 0  # no private record was scored
        assert search.certificate_.num_releases == 3

    def test_lost(self, monkeypatch):
        ledger = Ledger()
        search = whole(guarantee=GDP(1.0), ledger=ledger)

        def fail(self, value):
            raise KeyboardInterrupt

        monkeypatch.setattr(GaussianMechanism, "_draw", fail)
        with pytest.raises(KeyboardInterrupt):
            search.private_score(**private(), guarantee=GDP(1.0))
        assert search.certificate_.num_releases == 4 == len(ledger)

    def test_bad_records_say_nothing(self):
        search = whole(guarantee=GDP(1.0), ledger=Ledger())
        data = private()
        data["y_val"][3] = np.nan
        assert math.isfinite(search.private_score(**data, guarantee=GDP(1.0)).score)


class TestScoreTells:
    def test_private_records(self):
        data = private()
        Failing.fail(None)
        search = fit(search_of(), **data)
        match = r"given to fit as private.*private_score\(X_val=\.\.\."
        for X in (data["X_val"], data["X_val"][:50]):
            with pytest.warns(UnpaidReleaseWarning, match=match):
                search.score(X, data["y_val"][: len(X)])

    @pytest.mark.filterwarnings("error")
    def test_others(self):
        Failing.fail(None)
        search = fit(search_of())
        search.score(X_TRAIN, Y_TRAIN + np.arange(20))
        again = pickle.loads(pickle.dumps(search))
        again.score(*private().values())  # nothing of the records is in the pickle


class TestReport:
    def test_the_certificate_and_the_ledger_that_fit_made(self, tmp_path):
        search = fit(search_of())
        assert search.ledger is None
        page = search.report(tmp_path / "search.html")
        text = page.read_text(encoding="utf-8")
        assert page == tmp_path / "search.html"
        assert text.lower().startswith("<!doctype html>")
        assert search.certificate_.head.ledger in text
        assert "Budget over time" in text
        assert "Ward 3" not in text

    def test_what_the_owner_declares(self, tmp_path):
        search = fit(search_of())
        declared = Declaration(owner="Ward 3")
        page = search.report(tmp_path / "search.html", declaration=declared)
        assert "Ward 3" in page.read_text(encoding="utf-8")
        assert search.certificate_.declaration == Declaration()  # it is not changed

    def test_a_loaded_search_has_no_ledger(self, tmp_path):
        search = pickle.loads(pickle.dumps(fit(search_of())))
        text = search.report(tmp_path / "search.html").read_text(encoding="utf-8")
        assert "Budget over time" not in text

    def test_nothing_released(self, tmp_path):
        search = fit(search_of(timeout=1e-9))
        assert search.certificate_.num_releases == 0
        assert search.report(tmp_path / "search.html").exists()

    def test_before_fit(self, tmp_path):
        with pytest.raises(NotFittedError):
            search_of().report(tmp_path / "search.html")
