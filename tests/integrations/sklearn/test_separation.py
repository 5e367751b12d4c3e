"""Training records are refused as private ones where that can be seen."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.separation import check_alike, check_separate

X, Y = np.arange(200.0).reshape(100, 2), np.arange(100)
FRAME = pd.DataFrame({"a": X[:, 0], "b": ["x", "y"] * 50})


def frames(*rows):
    return [FRAME.iloc[list(r)] for r in rows]


class TestSeparate:
    @pytest.mark.parametrize(
        ("train", "validation"),
        [
            (X, X),
            (X, X[50:]),  # a view
            (X[:60], X[50:]),
            (X[::2], X[40:60]),
            (sparse.csr_matrix(X), sparse.csr_matrix(X)),
            (FRAME, FRAME.iloc[:20]),
            (FRAME.iloc[:60], FRAME.iloc[50:]),
            frames(range(0, 60), range(59, 100)),
            [f.set_index("b") for f in frames(range(0, 60), range(60, 100))],
        ],
        ids=range(9),
    )
    def test_refused(self, train, validation):
        if sparse.issparse(train):
            validation = train
        with pytest.raises(InvalidArgumentError, match="X_val must contain records"):
            check_separate(train, None, validation, None)

    @pytest.mark.parametrize(
        ("train", "validation"),
        [
            (X[:50], X[50:]),
            (X[::2], X[1::2]),
            (X, X.copy()),  # cannot be seen without comparing values
            (X.tolist(), X.tolist()),
            (sparse.csr_matrix(X[:50]), sparse.csr_matrix(X[50:])),
            frames(range(0, 50), range(50, 100)),
            frames(range(0, 100, 2), range(1, 100, 2)),
            # Two files, whose rows are both numbered from 0.
            (FRAME, pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})),
            (FRAME, X[:5] + 1),
        ],
        ids=range(9),
    )
    def test_accepted(self, train, validation):
        check_separate(train, None, validation, None)

    def test_targets(self):
        with pytest.raises(InvalidArgumentError, match="X_val must contain records"):
            check_separate(X[:100], Y, X[:100] + 1, Y)

    def test_says_nothing_about_which(self):
        with pytest.raises(InvalidArgumentError) as error:
            check_separate(FRAME, None, FRAME.iloc[37:41], None)
        assert not any(digit in str(error.value) for digit in "0123456789")


class TestAlike:
    @pytest.mark.parametrize(
        ("validation", "match"),
        [
            ((None, None), "fit needs X_val and y_val, the private validation records"),
            ((X, None), "fit needs X_val and y_val"),
            ((X[:10], Y[:9]), "same number of records, got 10 and 9"),
            ((X[:0], Y[:0]), "at least one record, got none"),
            ((X[:, :1], Y), r"features of X, \[2\], got \[1\]"),
        ],
    )
    def test_refused(self, validation, match):
        with pytest.raises(InvalidArgumentError, match=match):
            check_alike(X, Y, *validation)

    def test_columns(self):
        other = FRAME.rename(columns={"a": "c"})
        with pytest.raises(InvalidArgumentError, match=r"columns of X.*'a'") as error:
            check_alike(FRAME, Y, other, Y)
        assert "'c'" not in str(error.value)
        check_alike(FRAME, Y, FRAME.iloc[:3], Y[:3])

    def test_kinds(self):
        with pytest.raises(InvalidArgumentError, match="have the type of X, DataFrame"):
            check_alike(FRAME, Y, FRAME.to_numpy(), Y)
        with pytest.raises(InvalidArgumentError, match="have the type of X, ndarray"):
            check_alike(FRAME.to_numpy(), Y, FRAME, Y)

    def test_named_fields(self):
        fields = np.zeros(3, dtype=[("a", int), ("b", float)])
        other = np.zeros(3, dtype=[("a", int), ("c", float)])
        check_alike(fields, None, fields.copy(), None)
        with pytest.raises(InvalidArgumentError, match=r"columns of X, \['a', 'b'\]"):
            check_alike(fields, None, other, None)
        with pytest.raises(InvalidArgumentError, match="have the type of X, ndarray"):
            check_alike(fields, None, np.zeros((3, 2)), None)

    def test_data_frames_of_others(self):
        """Their cells would reach a model with the type of the whole column."""

        class Frame:
            columns, shape = ("a", "b"), (3, 2)

            def __len__(self):
                return 3

        with pytest.raises(
            InvalidArgumentError, match="X_val must be a pandas or polars DataFrame"
        ):
            check_alike(FRAME, None, Frame(), None)
        with pytest.raises(InvalidArgumentError, match="X must be a pandas or polars"):
            check_alike(Frame(), None, FRAME, None)

    def test_without_targets(self):
        check_alike(X, None, X, None)

    def test_missing_values_are_the_records_own_business(self):
        check_alike(X, Y, np.full_like(X, np.nan), Y)


class TestPandas:
    @pytest.mark.parametrize("version", ["2.2.3", "3.0.0", "3.0rc1", "1.5"])
    def test_old_ones_are_refused(self, monkeypatch, version):
        monkeypatch.setattr(pd, "__version__", version)
        first, second = frames(range(50), range(50, 100))
        with pytest.raises(InvalidArgumentError, match=r"need pandas 3\.1 or newer"):
            check_alike(first, None, second, None)
        with pytest.raises(InvalidArgumentError, match=f"got pandas {version}, with"):
            check_alike(X[:50], FRAME.a[:50], X[50:], FRAME.a[50:])
        with pytest.raises(InvalidArgumentError, match="in a column of times"):
            check_alike(X[:50], Y[:50], X[50:], pd.array(Y[50:]))
        check_alike(X[:50], Y[:50], X[50:], Y[50:])

    @pytest.mark.parametrize("version", ["3.1.0", "3.1rc1", "3.2.0.dev0+7", "10.0"])
    def test_new_ones_are_not(self, monkeypatch, version):
        monkeypatch.setattr(pd, "__version__", version)
        first, second = frames(range(50), range(50, 100))
        check_alike(first, None, second, None)
