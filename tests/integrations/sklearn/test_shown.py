"""A notebook shows what a search released, and escapes it."""

import pytest

from botorch_dp import GDP, Certificate, Ledger
from botorch_dp.privacy import GaussianEvent

pytest.importorskip("sklearn")

from sklearn.linear_model import LogisticRegression

from botorch_dp.integrations.sklearn import PrivateSearch, Real


@pytest.fixture
def search():
    space = {"C": Real(1e-3, 1e3, log=True)}
    return PrivateSearch(LogisticRegression(), space, GDP(1.0))


def html_of(search):
    html = search._repr_mimebundle_()["text/html"]
    assert search._repr_html_() == html
    return html


def test_before_the_fit_it_is_a_diagram(search):
    assert "sk-estimator" in search._repr_html_()


def test_after_the_fit_it_is_what_was_released(search):
    ledger = Ledger()
    ledger.charge(GaussianEvent(2.0))
    search.certificate_ = Certificate.from_ledger(ledger)
    search.best_params_ = {"C": 0.125, "<b>": "<i>"}
    search.best_score_, search.best_score_std_ = 0.75, 0.01
    search.stopped_ = "timeout"
    html = html_of(search)
    for text in (*search.certificate_.sentences, "0.125", "0.75 (noise: 0.01)"):
        assert text in html
    assert "timeout" in html
    assert "&lt;i&gt;" in html
    assert "<i>" not in html
    assert "class='botorch-dp'" in html
