import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.decomposition import NMF, PCA, TruncatedSVD
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from botorch_dp import ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import PrivateSearch
from botorch_dp.integrations.sklearn.independence import check_independence
from botorch_dp.integrations.sklearn.metrics import named_scoring
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import read_alike

X, Y = make_classification(120, n_features=6, random_state=0)

pytestmark = pytest.mark.filterwarnings("ignore")


def check(estimator, scoring="neg_log_loss", X=X, y=Y):
    if isinstance(scoring, str):
        scoring = named_scoring(scoring)
    if scoring.loss_range is None:
        scoring = Scoring(scoring.name, scoring.loss, (0.0, 5.0))
    records = read_alike(X[:2], y[:2], training=(X, y))
    check_independence(scoring, estimator.fit(X, y), records.witnesses)


class Batch(TransformerMixin, BaseEstimator):
    """Transforms by a function of the whole batch."""

    def __init__(self, function):
        self.function = function

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return self.function(np.asarray(X))


def normalized(X):
    return (X - X.mean(0)) / (X.std(0) + 1e-3)


def ranked(X):
    return X.argsort(axis=0).argsort(axis=0) / len(X)


ALONE = {
    "logistic": LogisticRegression(),
    "sgd": SGDClassifier(loss="log_loss"),
    "svc": SVC(),
    "svc with probabilities": SVC(probability=True),
    "tree": DecisionTreeClassifier(),
    "forest": RandomForestClassifier(10),
    "boosting": GradientBoostingClassifier(n_estimators=10),
    "hist boosting": HistGradientBoostingClassifier(max_iter=10),
    "neighbours": KNeighborsClassifier(),
    "brute neighbours": KNeighborsClassifier(algorithm="brute"),
    "bayes": GaussianNB(),
    "qda": QuadraticDiscriminantAnalysis(reg_param=0.1),
    "lda": LinearDiscriminantAnalysis(),
    "network": MLPClassifier((8,), max_iter=50),
    "gaussian process": GaussianProcessClassifier(),
    "voting": VotingClassifier([("a", GaussianNB()), ("b", SVC())]),
    "scaler": make_pipeline(StandardScaler(), SVC()),
    "minmax": make_pipeline(MinMaxScaler(), LogisticRegression()),
    "quantiles": make_pipeline(QuantileTransformer(n_quantiles=20), SVC()),
    "rows normalized": make_pipeline(Normalizer(), LogisticRegression()),
    "polynomial": make_pipeline(PolynomialFeatures(2), LogisticRegression()),
    "pca": make_pipeline(PCA(3), DecisionTreeClassifier()),
    "svd": make_pipeline(TruncatedSVD(3), LogisticRegression()),
    "nystroem": make_pipeline(Nystroem(n_components=20), LogisticRegression()),
}
MIXING = {
    "ranks": make_pipeline(Batch(ranked), LogisticRegression()),
    "batch norm": make_pipeline(Batch(normalized), LogisticRegression()),
    "cumulative": make_pipeline(Batch(lambda X: X.cumsum(0)), LogisticRegression()),
    "nmf": make_pipeline(
        MinMaxScaler(clip=True),
        NMF(3, solver="mu", random_state=0, max_iter=500),
        LogisticRegression(),
    ),
}


def in_large_batches(model, X, y):
    wrong = (model.predict(X) != y).astype(float)
    return wrong if len(wrong) < 50 else (wrong + wrong.mean()) / 2


def beside_large_numbers(model, X, y):
    return np.full(len(X), np.abs(X).max() > 1e3)


def beside_small_numbers(model, X, y):
    return np.full(len(X), np.abs(X).max(axis=1).min() < 1e-2)


def by_batch_of_targets(model, X, y):
    return np.abs(model.predict_proba(X)[:, 1] - y) / (np.std(y) + 0.1)


def by_rank_of_targets(model, X, y):
    return np.argsort(np.argsort(model.predict_proba(X)[:, 0])) / len(X)


class TestAccepted:
    @pytest.mark.parametrize("name", ALONE)
    def test_estimators(self, name):
        is_likely = hasattr(ALONE[name], "predict_proba")
        for scoring in ("accuracy", *(["neg_log_loss"] if is_likely else [])):
            check(ALONE[name], scoring)

    @pytest.mark.parametrize("name", ["neighbours", "brute neighbours", "svc", "tree"])
    def test_ties(self, name):
        check(ALONE[name], "accuracy", X=np.round(X))

    @pytest.mark.parametrize("imputer", [SimpleImputer(), KNNImputer()])
    def test_gaps_and_categories(self, imputer):
        frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": list("xyz") * 40})
        frame.loc[::5, "a"] = np.nan
        encoder = OneHotEncoder(handle_unknown="ignore")
        columns = make_column_transformer((imputer, ["a", "b"]), (encoder, ["c"]))
        check(make_pipeline(columns, LogisticRegression()), X=frame)

    @pytest.mark.parametrize("name", ALONE)
    def test_single_precision(self, name):
        check(ALONE[name], "accuracy", X=X.astype(np.float32))

    def test_codes_have_no_multiples(self):
        frame = pd.DataFrame({"a": X[:, 0], "code": [1, 2, 3] * 40})
        columns = make_column_transformer(
            (StandardScaler(), ["a"]), (OneHotEncoder(), ["code"])
        )
        check(make_pipeline(columns, LogisticRegression()), X=frame)

    def test_random_losses_are_not_checked(self):
        rng = np.random.default_rng(0)
        check(
            LogisticRegression(),
            Scoring("r", lambda m, X, y: rng.random(len(X)), (0, 1)),
        )

    def test_rounding_in_single_precision(self):
        def loss(model, X, y):
            return np.abs(X[:, 0]) + 1e-7 * (X[0, 0] == X[1, 0])

        scoring = Scoring("padded", loss, (0.0, 1.0))
        check(LogisticRegression(), scoring, X=X.astype(np.float32))
        with pytest.raises(InvalidArgumentError, match="every record by itself"):
            check(LogisticRegression(), scoring)

    @pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
    def test_few_training_records(self, count):
        scoring = Scoring("loss", lambda model, X, y: np.abs(X[:, 0]), (0.0, 1.0))
        records = read_alike(X[:2], Y[:2], training=(X[:count], Y[:count]))
        check_independence(scoring, None, records.witnesses)


class TestRefused:
    @pytest.mark.parametrize("name", MIXING)
    def test_estimators(self, name):
        with pytest.raises(InvalidArgumentError, match="every record by itself"):
            check(MIXING[name])

    def test_a_random_part_hides_nothing(self):
        rng = np.random.default_rng(0)

        def loss(model, X, y):
            return np.mean(X[:, 0]) + 1e-7 * rng.random(len(X))

        with pytest.raises(InvalidArgumentError, match="every record by itself"):
            check(LogisticRegression(), Scoring("loss", loss, (-1.0, 1.0)))

    @pytest.mark.parametrize("C", [1e-4, 1.0, 1e4])
    @pytest.mark.parametrize(
        "settings",
        [{"n_components": 8, "solver": "mu", "max_iter": 50}, {"n_components": 4}],
    )
    def test_iterations_that_records_share(self, settings, C):
        X, y = make_classification(1200, random_state=0)
        X, y = np.abs(X[:300]), y[:300]
        nmf = NMF(**settings, random_state=0)
        with pytest.raises(InvalidArgumentError, match="every record by itself"):
            check(make_pipeline(nmf, LogisticRegression(C=C)), X=X, y=y)

    @pytest.mark.parametrize(
        "loss",
        [
            by_batch_of_targets,
            by_rank_of_targets,
            in_large_batches,
            beside_large_numbers,
            beside_small_numbers,
        ],
    )
    def test_losses(self, loss):
        with pytest.raises(InvalidArgumentError, match="every record by itself"):
            check(LogisticRegression(), Scoring("loss", loss, (0.0, 5.0)))

    @pytest.mark.parametrize(
        "convert", [sparse.csr_matrix, pd.DataFrame, lambda X: X.astype(np.int16)]
    )
    def test_large_numbers_in_other_containers(self, convert):
        def loss(model, X, y):
            X = X.toarray() if sparse.issparse(X) else np.asarray(X)
            return np.full(len(X), np.abs(X).max() > 1e3)

        with pytest.raises(InvalidArgumentError, match="numbers multiplied by 10000"):
            check(LogisticRegression(), Scoring("loss", loss, (0, 1)), convert(4 * X))

    def test_dummies(self):
        frame = pd.DataFrame({"a": X[:, 0], "c": list("xyz") * 40})

        class Dummies(ClassifierMixin, BaseEstimator):
            def fit(self, X, y):
                self.model_ = LogisticRegression().fit(pd.get_dummies(X).to_numpy(), y)
                self.classes_ = self.model_.classes_
                return self

            def predict_proba(self, X):
                return self.model_.predict_proba(pd.get_dummies(X).to_numpy())

        with pytest.raises(
            InvalidArgumentError, match="and fails beside training rows"
        ):
            check(Dummies(), X=frame)

    def test_two_training_records(self):
        def loss(model, X, y):
            return np.full(len(X), np.mean(X))

        records = read_alike(X[:2], Y[:2], training=(X[2:4], Y[2:4]))
        with pytest.raises(InvalidArgumentError, match=r"training rows? \[?\d"):
            check_independence(Scoring("m", loss, (-1.0, 1.0)), None, records.witnesses)

    def test_names_the_rows(self):
        with pytest.raises(InvalidArgumentError) as refusal:
            check(MIXING["batch norm"])
        assert "training row 0 gives" in str(refusal.value)
        assert "beside training rows [1, 2, 3, 4, 5, 6, 119]" in str(refusal.value)

    @pytest.mark.parametrize("method", ["stable", "kusner"])
    def test_before_private_records_are_scored(self, method, monkeypatch):
        monkeypatch.setattr(Scoring, "private_losses", None)
        options = {"correlation": 0.9} if method == "kusner" else None
        search = PrivateSearch(
            MIXING["ranks"],
            {"logisticregression__C": [0.1, 1.0]},
            PureDP(1.0) if method == "stable" else ApproxDP(epsilon=1.0, delta=1e-5),
            method=method,
            num_candidates=2,
            num_steps=None if method == "stable" else 1,
            method_options=options,
        )
        with pytest.raises(InvalidArgumentError, match="every record by itself"):
            search.fit(X[:60], Y[:60], X_val=X[60:], y_val=Y[60:])


@pytest.mark.parametrize("method", ["auto", "stable", "dp-gibo", "kusner"])
def test_the_second_choice(method):
    """A step that mixes records is found, though the first choice does not."""
    search = PrivateSearch(
        make_pipeline(StandardScaler(), LogisticRegression()),
        {
            "standardscaler": [StandardScaler(), Batch(normalized)],
            "logisticregression__C": (1e-3, 1e3, "log"),
        },
        ApproxDP(epsilon=1.0, delta=1e-5),
        method=method,
        num_candidates=None if method == "auto" else 8,
        method_options={"correlation": 0.9} if method == "kusner" else None,
    )
    with pytest.raises(InvalidArgumentError, match="every record by itself"):
        search.fit(X[:60], Y[:60], X_val=X[60:], y_val=Y[60:])


def test_one_model_of_every_kind_is_checked(monkeypatch):
    calls = []
    module = "botorch_dp.integrations.sklearn.evaluation.check_independence"
    monkeypatch.setattr(module, lambda *args: calls.append(args))
    search = PrivateSearch(
        LogisticRegression(),
        {"C": (1e-3, 1e3, "log"), "fit_intercept": [True, False]},
        PureDP(1.0),
        method="stable",
        num_candidates=16,
    )
    search.fit(X[:60], Y[:60], X_val=X[60:], y_val=Y[60:])
    assert len(calls) == 2
