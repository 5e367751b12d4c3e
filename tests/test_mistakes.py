"""What a new user is likely to get wrong, and what they are told.

Each message names the argument, says what is wrong and what to do instead.
"""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from botorch_dp import DPGIBO, GDP, ApproxDP, GradientInformation, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
    UnpaidReleaseWarning,
    WeakGuaranteeWarning,
)
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.integrations.sklearn import PrivateSearch, Real

X, Y = make_classification(90, random_state=0)
TRAIN, PRIVATE = (X[:30], Y[:30]), {"X_val": X[30:], "y_val": Y[30:]}
GUARANTEE = ApproxDP(epsilon=1.0, delta=1e-5)
SPACE = {"C": Real(1e-3, 1e3, log=True)}


def search(estimator=None, space=SPACE, guarantee=GUARANTEE, **kwargs):
    estimator = LogisticRegression() if estimator is None else estimator
    small = {"num_steps": 1} if "method" in kwargs else {"max_evaluations": 4}
    return PrivateSearch(estimator, space, guarantee, **small, **kwargs)


def fit(*args, **kwargs):
    return search(*args, **kwargs).fit(*TRAIN, **PRIVATE)


def optimizer():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, device="cpu")
    return DPGIBO(bounds, 100, GDP(mu=1.0), num_steps=2, clip_norm=1.0)


def told(losses):
    opt = optimizer()
    opt.ask()
    opt.tell(losses)


def search_twice_under_one_cap():
    ledger = Ledger(cap=GUARANTEE)
    for _ in range(2):
        fit(ledger=ledger)


MISTAKES = {
    "no private records": (
        lambda: search().fit(X, Y),
        InvalidArgumentError,
        r"fit needs X_val and y_val, the private validation records: "
        r"fit\(X, y, X_val=\.\.\., y_val=\.\.\.\)",
    ),
    "private records that were trained on": (
        lambda: search().fit(X, Y, X_val=X[30:], y_val=Y[30:]),
        InvalidArgumentError,
        r"X_val must contain records that the models are not trained on.*Split the",
    ),
    "epsilon for a guarantee": (
        lambda: fit(guarantee=1.0),
        InvalidArgumentError,
        r"guarantee must be a PureDP, ApproxDP, GDP or RDP, got 1\.0",
    ),
    "pure privacy from Gaussian noise": (
        lambda: fit(guarantee=PureDP(1.0), method="dp-gibo"),
        InvalidArgumentError,
        r"guarantee must be an ApproxDP, a GDP or an RDP with method='dp-gibo'.*"
        r"got PureDP\(epsilon=1\)\. Use method='auto' for this guarantee",
    ),
    "Gaussian privacy from the exponential mechanism": (
        lambda: fit(guarantee=GDP(1.0), method="stable"),
        InvalidArgumentError,
        r"guarantee must be a PureDP or an ApproxDP with method='stable', got "
        r"GDP\(mu=1\)\. Use method='auto' for this guarantee",
    ),
    "epsilon and delta the wrong way round": (
        lambda: fit(guarantee=ApproxDP(1e-5, 0.5)),
        WeakGuaranteeWarning,
        r"delta above one over the number of records \(60\).*after epsilon",
    ),
    "a limit below the first release": (
        lambda: search(max_fits=1).fit(*TRAIN, **PRIVATE),
        InvalidArgumentError,
        r"max_fits must be at least \d+ here.*got 1\. Nothing was trained\. "
        r"max_evaluations plans a smaller search",
    ),
    "minutes for a timeout": (
        lambda: fit(timeout="10min"),
        InvalidArgumentError,
        r"timeout must be a .*number.*got '10min'",
    ),
    "a checkpoint with a ledger that dies with the process": (
        lambda: fit(checkpoint="search.pt", ledger=Ledger(cap=GUARANTEE)),
        InvalidArgumentError,
        r"checkpoint needs a ledger that outlives the process.*ledger=Ledger\(path",
    ),
    "more from a budget that is spent": (
        lambda: fit().resume(**PRIVATE, guarantee=GUARANTEE),
        BudgetExceededError,
        r"cap",
    ),
    "to continue what has ended": (
        lambda: fit().resume(**PRIVATE),
        InvalidArgumentError,
        r"guarantee must be given: this search has spent its own budget",
    ),
    "the score of private records": (
        lambda: fit().score(X[30:], Y[30:]),
        UnpaidReleaseWarning,
        r"one more release.*private_score\(X_val=\.\.\., y_val=\.\.\., guarantee=",
    ),
    "results before the fit": (
        lambda: search().best_params_,
        AttributeError,
        r"no attribute 'best_params_': call fit first",
    ),
    "a parameter that the estimator does not have": (
        lambda: fit(space={"c": SPACE["C"]}),
        InvalidArgumentError,
        r"space contains 'c', but LogisticRegression has no such parameter\. Available "
        r"parameters: C, ",
    ),
    "a pair for a range": (
        lambda: fit(space={"C": (1e-3, 1e3)}),
        InvalidArgumentError,
        r"space\['C'\] must be Real\(low, high\), Integer\(low, high\), Categorical",
    ),
    "a log scale from zero": (
        lambda: Real(0.0, 1e3, log=True),
        InvalidArgumentError,
        r"low must be above 0 with log=True",
    ),
    "steps of a search that is planned": (
        lambda: search(num_steps=5).fit(*TRAIN, **PRIVATE),
        InvalidArgumentError,
        r"num_steps needs method='dp-gibo', got 5 with method='auto', which plans all "
        r"settings\. max_evaluations limits the number of models",
    ),
    "a score of all records together": (
        lambda: fit(method="stable", scoring="roc_auc"),
        InvalidArgumentError,
        r"not a mean over records are not supported\. ranking_accuracy\(X_reference, "
        r"y_reference\) estimates the AUC with a public sample\. Got 'roc_auc'",
    ),
    "no probabilities": (
        lambda: fit(SVC(), scoring="neg_log_loss"),
        InvalidArgumentError,
        r"needs an estimator with predict_proba, but SVC does not have it\. Use scor",
    ),
    "one number for all records": (
        lambda: fit(scoring=lambda model, X, y: model.score(X, y), loss_range=(0, 1)),
        InvalidArgumentError,
        r"scoring must return one loss for each record",
    ),
    "a loss without a range": (
        lambda: fit(scoring=lambda model, X, y: model.predict(X) != y),
        InvalidArgumentError,
        r"loss_range must be given.*Choose it without looking at the private data",
    ),
    "the scores of all candidates": (
        lambda: fit().cv_results_,
        AttributeError,
        r"exact scores of candidates are private.*history_ contains what is public",
    ),
    "a score that nobody paid for": (
        lambda: fit().best_score_,
        AttributeError,
        r"request it with release_score=True before fit",
    ),
    "a spent budget": (
        search_twice_under_one_cap,
        BudgetExceededError,
        r"has spent epsilon=1 in 2 charge\(s\), this run would bring it to 1\.\d+, and "
        r"its cap is.*Nothing was recorded or drawn: ask for a smaller",
    ),
    "a guarantee of another kind than the cap's": (
        lambda: fit(ledger=Ledger(cap=PureDP(1.0))),
        BudgetExceededError,
        r"would bring it to inf.*its guarantee is of another kind, or has a larger",
    ),
    "a range beyond all numbers": (
        lambda: fit(loss_range=(0, 10**400)),
        InvalidArgumentError,
        r"loss_range must be \(low, high\), finite with low below high",
    ),
    "means for losses": (
        lambda: told(torch.zeros(3, dtype=torch.float64, device="cpu")),
        InvalidArgumentError,
        r"losses must be 100 x 3 \(one loss for each record and point\)",
    ),
    "arrays for tensors": (
        lambda: told(np.zeros((100, 3))),
        InvalidArgumentError,
        r"losses must be a torch.Tensor.*got ndarray.*torch\.as_tensor\(losses\)",
    ),
    "whole numbers as bounds": (
        lambda: DPGIBO(
            torch.tensor([[0], [1]], device="cpu"),
            100,
            GDP(mu=1.0),
            num_steps=2,
            clip_norm=1.0,
        ),
        InvalidArgumentError,
        r"bounds must be a 2 x d tensor of torch\.float32 or torch\.float64 \(lower "
        r"bounds first\), got torch\.int64 of shape \(2, 1\)",
    ),
    "losses for a function": (
        lambda: optimizer().run(torch.zeros(100, 3, device="cpu")),
        InvalidArgumentError,
        r"objective must be a function from points to losses .*, got a Tensor",
    ),
    "an answer that nobody asked for": (
        lambda: optimizer().tell(torch.zeros(100, 3, device="cpu")),
        OptimizerStateError,
        r"tell\(\) needs an ask\(\) before it: call ask\(\) first",
    ),
    "another model in the acquisition": (
        lambda: GradientInformation(torch.nn.Identity(), X_center=torch.zeros(1, 2)),
        InvalidArgumentError,
        r"model must be a GradientGP, got Identity; GradientGP\.from_model takes a",
    ),
    "batch size for sample rate": (
        lambda: JointBudget(
            GUARANTEE, num_records=800, sample_rate=50, steps_per_run=10
        ),
        InvalidArgumentError,
        r"sample_rate must be at most 1, got 50",
    ),
}


@pytest.mark.default_device
@pytest.mark.parametrize("name", MISTAKES)
def test_says_what_to_do(name):
    mistake, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        mistake()


def test_without_the_mistakes_it_works():
    assert set(fit().best_params_) == {"C"}
    assert len(optimizer().ask()) == 3
