"""Results of every kind are cards in notebooks, with the sentences of a certificate."""

import html

import pytest
import torch

from botorch_dp import Certificate, Ledger
from botorch_dp.optimizers import (
    ComposedResult,
    FederatedResult,
    SelectionResult,
    VoteResult,
)
from botorch_dp.privacy import GaussianEvent

EXACT = 0.12345678


@pytest.fixture
def certificate():
    ledger = Ledger()
    ledger.charge(GaussianEvent(5.0))
    return Certificate.from_ledger(ledger)


RESULTS = {
    "selection": (
        lambda c: SelectionResult({"lr": 0.25}, "a model", 0.5, c),
        ["{&#x27;lr&#x27;: 0.25}", "<td>0.5</td>"],
    ),
    "no run": (
        lambda c: SelectionResult("<b>", None, None, c),
        ["&lt;b&gt;", "no run"],
    ),
    "composed": (
        lambda c: ComposedResult(2, "a model", 0.5, ((1, 0.25), (2, 0.5)), c),
        ["0.25 at 1", "0.5 at 2"],
    ),
    "winner": (lambda c: VoteResult(1, "b", c), ["<td>b</td>"]),
    "vote": (
        lambda c: VoteResult(1, "b", c, torch.tensor([0.5, 2.0], device="cpu")),
        ["0.5, 2"],
    ),
    "federation": (
        lambda c: FederatedResult(
            torch.zeros(3, 1, 7, device="cpu"),
            c,
            *(
                torch.full(shape, EXACT, device="cpu")
                for shape in ((4, 2), (4,), (4, 4))
            ),
        ),
        ["3 of 1 region(s) with 7 features", "<td>4</td>"],
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_cards(certificate, name):
    make, texts = RESULTS[name]
    card = make(certificate)._repr_html_()
    for text in (*texts, *map(html.escape, certificate.sentences)):
        assert text in card
    assert "class='botorch-dp'" in card
    assert "0.1234" not in card  # what is private to agents
    assert "a model" not in card
