"""What a new user is likely to get wrong, and what they are told.

Each message names the argument, says what is wrong and what to do instead.
"""

from io import StringIO as CSV
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
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
from botorch_dp.integrations.sklearn import PrivateSearch, Real, read_csv

X, Y = make_classification(90, random_state=0)
TRAIN, PRIVATE = (X[:30], Y[:30]), {"X_val": X[30:], "y_val": Y[30:]}
FRAME = pd.DataFrame({"age": X[:, 0], "ward": "north"})
DATA = read_csv(
    CSV("age,ill\n" + "30,0\n70,1\n" * 10),
    CSV("age,ill\n" + "31,0\n69,1\n" * 10),
    target="ill",
)
GUARANTEE = ApproxDP(epsilon=1.0, delta=1e-5)
SPACE = {"C": Real(1e-3, 1e3, log=True)}


def search(estimator=None, space=SPACE, guarantee=GUARANTEE, **kwargs):
    estimator = LogisticRegression() if estimator is None else estimator
    small = {"num_steps": 1} if "method" in kwargs else {"max_evaluations": 4}
    return PrivateSearch(estimator, space, guarantee, **small, **kwargs)


def fit(*args, **kwargs):
    return search(*args, **kwargs).fit(*TRAIN, **PRIVATE)


def fit_csv():
    return search(space={"C": [0.1, 1.0]}).fit(**DATA.training, **DATA.private)


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
        r"guarantee must be a PureDP, ApproxDP, GDP or RDP, got 1\.0\. Write "
        r"guarantee=ApproxDP\(epsilon=1\.0, delta=1e-06\)",
    ),
    "epsilon of NumPy for a guarantee": (
        lambda: fit(guarantee=np.float64(1)),
        InvalidArgumentError,
        r"Write guarantee=ApproxDP\(epsilon=1\.0, delta=1e-06\)",
    ),
    "epsilon for a guarantee of DP-GIBO": (
        lambda: DPGIBO(optimizer().bounds, 100, 0.5, num_steps=2, clip_norm=1.0),
        InvalidArgumentError,
        r"got 0\.5\. Write guarantee=ApproxDP\(epsilon=0\.5, delta=1e-06\)",
    ),
    "cross-validation": (
        lambda: fit(cv=5),
        InvalidArgumentError,
        r"cv must be None, got 5: a model that is trained on private records is itself "
        r"a release.*X_val and y_val.*JointBudget",
    ),
    "a misspelt method": (
        lambda: fit(method="dpgibo"),
        InvalidArgumentError,
        r"method must be one of .*got 'dpgibo'\. Did you mean 'dp-gibo'\?",
    ),
    "a range in the wrong order": (
        lambda: fit(space={"C": (1e3, 1e-3, "log")}),
        InvalidArgumentError,
        r"space\['C'\]: low must be below high.*got Real\(low=1000\.0, high=0\.001",
    ),
    "a condition on an unknown parameter": (
        lambda: fit(space={"C": Real(0.1, 1.0, when={"penalty": "l2"})}),
        InvalidArgumentError,
        r"when of space\['C'\] must name a category of the same space, got 'penalty', "
        r"but the space has no such parameter",
    ),
    "a misspelt parameter of a pipeline": (
        lambda: fit(
            make_pipeline(LogisticRegression()), {"logisticregresion__C": (0.1, 1.0)}
        ),
        InvalidArgumentError,
        r"space contains 'logisticregresion__C', but Pipeline has no such parameter\. "
        r"Did you mean 'logisticregression__C'\?",
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
    "predictions for a private file": (
        lambda: fit_csv().predict(DATA.X_val),
        InvalidArgumentError,
        r"X must be public, got the private records of read_csv.*private_score\(X_val=",
    ),
    "persons for some records only": (
        lambda: search().fit(*TRAIN, **PRIVATE, groups=["Ann", "Bob"]),
        InvalidArgumentError,
        r"groups must be as long as X_val.*60 names, got 2",
    ),
    "a dict for the persons of records": (
        lambda: search().fit(*TRAIN, **PRIVATE, groups=dict.fromkeys(range(60), "Ann")),
        InvalidArgumentError,
        r"groups must be an array or list .* in the order of X_val, got a dict.*Write "
        r"groups=\[names\[key\] for key in keys\]",
    ),
    "a set for the persons of records": (
        lambda: search().fit(*TRAIN, **PRIVATE, groups={*range(60)}),
        InvalidArgumentError,
        r"groups must be an array or list .* in the order of X_val, got a set",
    ),
    "a score of other persons": (
        lambda: (
            search()
            .fit(*TRAIN, **PRIVATE, groups=[i // 2 for i in range(60)])
            .private_score(**PRIVATE, groups=[*range(60)], guarantee=GUARANTEE)
        ),
        InvalidArgumentError,
        r"private_score needs the private records of fit, 30 persons with 60 records, "
        r"got 60 persons with 60 records",
    ),
    "a bound on the records of persons whom nobody names": (
        lambda: fit(max_records_per_person=3),
        InvalidArgumentError,
        r"max_records_per_person needs groups, got 3 without: fit\(\.\.\., groups=",
    ),
    "a score by record after a search by person": (
        lambda: (
            search()
            .fit(*TRAIN, **PRIVATE, groups=[*range(60)])
            .private_score(**PRIVATE, guarantee=GUARANTEE)
        ),
        InvalidArgumentError,
        r"private_score needs groups=.*this search protects persons, not records",
    ),
    "the training file as the private file": (
        lambda: PrivateSearch.from_csv(__file__, Path(__file__), target="ill"),
        InvalidArgumentError,
        r"private must be another file than train, got .* twice.* Split the records",
    ),
    "a private file without a column": (
        lambda: read_csv(CSV("age,ill\n1,no\n"), CSV("ill\nno\n"), target="ill"),
        InvalidArgumentError,
        r"private must have the columns \['age', 'ill'\] in its first line, but it has "
        r"no \['age'\]",
    ),
    "a schema for a column that is not there": (
        lambda: search(schema={"agee": "float"}).fit(
            FRAME[:30], Y[:30], X_val=FRAME[30:], y_val=Y[30:]
        ),
        InvalidArgumentError,
        r"schema must name columns of the training data, which are \['age', 'ward'\], "
        r"got \['agee'\]",
    ),
    "a training cell that does not fit the schema": (
        lambda: search(schema={"ward": "int"}).fit(
            FRAME[:30], Y[:30], X_val=FRAME[30:], y_val=Y[30:]
        ),
        InvalidArgumentError,
        r"X must have cells of the type 'int' in column 'ward', got 'north' in row 0\. "
        r"Change the cell, or give the column another type in schema",
    ),
    "a type that does not exist": (
        lambda: search(schema={"age": "number"}).fit(
            FRAME[:30], Y[:30], X_val=FRAME[30:], y_val=Y[30:]
        ),
        InvalidArgumentError,
        r"schema\['age'\] must be 'float', 'int', 'bool', 'text', 'date'.*got 'number'",
    ),
    "a schema for an array": (
        lambda: fit(schema={"age": "float"}),
        InvalidArgumentError,
        r"X must have named columns if there is a schema: a pandas or polars DataFrame",
    ),
    "results before the fit": (
        lambda: search().best_params_,
        AttributeError,
        r"no attribute 'best_params_': call fit first",
    ),
    "a parameter that the estimator does not have": (
        lambda: fit(space={"c": SPACE["C"]}),
        InvalidArgumentError,
        r"space contains 'c', but LogisticRegression has no such parameter\. Did you "
        r"mean 'C'\? Available parameters: C, ",
    ),
    "two whole numbers for a range of numbers": (
        lambda: fit(space={"C": (0, 1)}),
        InvalidArgumentError,
        r"space\['C'\]: \(0, 1\) is ambiguous: write Real\(0, 1\)",
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
        lambda: fit(method="dp-gibo", scoring="roc_auc"),
        InvalidArgumentError,
        r"scoring='roc_auc' needs method='auto' or method='stable', got "
        r"method='dp-gibo', which needs one loss for each record\. Use "
        r"scoring=ranking_accuracy\(X_reference, y_reference\)",
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
        r"model must be an exact Gaussian process, .* like SingleTaskGP, got Identity",
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
