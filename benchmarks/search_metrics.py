"""What a score costs: a private choice of a model by AUC, F1 and means over records.

Writes ``benchmarks/results/search_metrics.json`` and the tables made from it. Run it
with ``make benchmarks``, or some sections with ``python -m benchmarks.search_metrics
NAME ...``. Adult needs the data: set ``BOTORCH_DP_DATA``.
"""

import statistics
import sys
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._common import Row, in_parallel, report, seeded
from benchmarks.problems import load_dataset
from botorch_dp import Ledger, PureDP
from botorch_dp.integrations.sklearn import ranking_accuracy
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.scoring import make_scoring
from botorch_dp.privacy import PermuteAndFlipMechanism

Data = tuple[Any, Any]
EPSILONS = (0.3, 1.0, 3.0)
NUM_CANDIDATES, NUM_SPLITS, NUM_DRAWS = 32, 10, 400
NUM_TRAIN, NUM_PUBLIC, NUM_TEST = 800, 400, 5000
SCORES = (
    "roc_auc",
    "ranking_accuracy",
    "f1",
    "balanced_accuracy",
    "neg_log_loss",
    "accuracy",
)


def candidates(seed: int) -> list[Any]:
    """Random kernel classifiers, half of them with class weights."""
    rng, found = np.random.default_rng(seed), []
    for index in range(NUM_CANDIDATES):
        gamma, C = 10 ** rng.uniform([-4, -3], [0, 3])
        weight = "balanced" if index % 2 else None
        found.append(
            make_pipeline(
                StandardScaler(),
                Nystroem(gamma=gamma, n_components=60, random_state=0),
                LogisticRegression(C=C, class_weight=weight, max_iter=200),
            )
        )
    return found


def replication(data: Data, num_private: int, seed: int) -> dict[str, list[float]]:
    """The mean test AUC and F1 of the models chosen by each score."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    sizes = [NUM_TRAIN, NUM_PUBLIC, num_private, NUM_TEST]
    X, _, y, _ = train_test_split(
        *data, train_size=sum(sizes), stratify=data[1], random_state=seed
    )
    cuts = np.cumsum(sizes)[:-1]
    train, public, private, test = zip(
        np.split(X, cuts), np.split(y, cuts), strict=True
    )
    models = [model.fit(*train) for model in candidates(seed)]
    judged = np.array([judge(model, *test) for model in models])
    records = read_alike(*private, training=train)
    found = {"best": judged.max(axis=0).tolist()}
    for name in SCORES:
        given: Any = name
        if name == "ranking_accuracy":
            given = ranking_accuracy(*public)
        scoring = make_scoring(
            given,
            None,
            estimator=models[0],
            prefers_log_loss=True,
            training_targets=train[1],
        )
        columns = np.stack([scoring.private_losses(m, records) for m in models], -1)
        if isinstance(scoring, CandidateScoring):
            utilities = scoring.utilities(columns, num_private)
            sensitivity = scoring.sensitivity(num_private)
        else:
            assert scoring.loss_range is not None
            utilities = -columns.mean(axis=0)
            low, high = scoring.loss_range
            sensitivity = (high - low) / num_private
        found[f"{name} no noise"] = judged[int(np.argmax(utilities))].tolist()
        many = torch.from_numpy(utilities).expand(NUM_DRAWS, -1).contiguous()
        for epsilon in EPSILONS:
            mechanism = PermuteAndFlipMechanism(
                PureDP(epsilon), sensitivity=sensitivity, generator=seeded(seed)
            )
            chosen = mechanism.release(many, ledger=Ledger())
            found[f"{name} {epsilon:g}"] = judged[chosen.numpy()].mean(axis=0).tolist()
    return found


def judge(model: Any, X: Any, y: Any) -> list[float]:
    """The AUC and F1 on test records, in percent."""
    scores = model.predict_proba(X)[:, 1]
    return [100 * roc_auc_score(y, scores), 100 * f1_score(y, model.predict(X))]


def compare(data: Data, num_private: int) -> list[Row]:
    """A row for each score: the mean and standard error over splits."""
    seeds = range(NUM_SPLITS)
    found = in_parallel(replication, [(data, num_private, seed) for seed in seeds])
    rows = []
    for index, judged in enumerate(("test AUC", "test F1")):
        rows.append(
            {"judged by": judged, "score": "best in hindsight"}
            | {"no noise": _mean(found, "best", index)}
        )
        for name in SCORES:
            row: Row = {"judged by": judged, "score": name}
            for epsilon in EPSILONS:
                row[f"epsilon {epsilon:g}"] = _mean(found, f"{name} {epsilon:g}", index)
            row["no noise"] = _mean(found, f"{name} no noise", index)
            rows.append(row)
    return rows


def _mean(found: list[dict[str, list[float]]], key: str, index: int) -> str:
    values = [each[key][index] for each in found]
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {error:.2f}"


def rare_class() -> list[Row]:
    """Generated records, 10 % positive: test AUC and F1 in percent.

    2,000 private records with 20 inputs. 32 kernel classifiers, half of them with class
    weights, are trained on 800 records. One is chosen by permute-and-flip with pure
    epsilon, by the score in the first column. ``ranking_accuracy`` has 400 more public
    records. Means over 10 splits with 400 draws of the noise each; errors are standard
    errors over splits.
    """
    data = make_classification(
        20_000,
        n_informative=6,
        n_clusters_per_class=3,
        weights=[0.9],
        class_sep=0.8,
        random_state=0,
    )
    return compare(data, 2000)


def adult() -> list[Row]:
    """Adult, 25 % positive: test AUC and F1 in percent.

    As above, with 4,000 private records. Inputs are numbers and one-hot categories.
    """
    arrays = load_dataset("adult")
    parts = [arrays["numeric"].astype(np.float64)]
    for name, codes in arrays.items():
        if name.startswith("cat_"):
            parts.append(np.eye(int(codes.max()) + 1)[codes])
    return compare((np.hstack(parts), arrays["y"].astype(int)), 4000)


if __name__ == "__main__":
    report("search_metrics", "What a score costs", (rare_class, adult), sys.argv[1:])
