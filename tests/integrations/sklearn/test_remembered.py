"""What a search remembers: in this process only, and no private record."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from scipy import sparse

from botorch_dp import Ledger
from botorch_dp.integrations.sklearn.remembered import Remembered

pd = pytest.importorskip("pandas")
X = np.random.default_rng(0).normal(size=(50, 3))
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])


class TestArePrivate:
    @pytest.mark.parametrize(
        ("given", "same"),
        [
            (X, X),
            (X, X[10:20]),  # a view
            (X, X.copy()),
            (X[::2], X[::2].copy()),
            (FRAME, FRAME.copy()),
            (FRAME[["a", "b"]], FRAME[["a", "b"]]),
            (X.tolist(), X.tolist()),
            (sparse.csr_matrix(X), sparse.csr_matrix(X)),
        ],
    )
    def test_recognized(self, given, same):
        assert Remembered(private_inputs=given).are_private(same)

    @pytest.mark.parametrize("other", [X + 1, X.copy()[:49], FRAME + 1, None, "a"])
    def test_others(self, other):
        assert not Remembered(private_inputs=X).are_private(other)
        assert not Remembered().are_private(other)

    def test_hostile_objects_say_nothing(self):
        class Hostile:
            def __reduce__(self):
                raise RuntimeError("a private record")

        remembered = Remembered(private_inputs=Hostile())
        assert not remembered.are_private(Hostile())
        assert not remembered.are_private(X)


def test_private_records_are_not_kept():
    private = X.copy()
    gone = weakref.ref(private)
    remembered = Remembered(private_inputs=private)
    del private
    gc.collect()
    assert gone() is None
    assert remembered.are_private(X)


def test_the_key_is_new_each_time():
    """Without it, a hash of few possible data sets could be inverted."""
    one, two = Remembered(private_inputs=X), Remembered(private_inputs=X)
    assert one._digest != two._digest


@pytest.mark.parametrize(
    "copied", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy, copy.copy]
)
def test_copies_are_empty(copied):
    remembered = Remembered((X, X, {}), Ledger(), X, {"seed": 1}, leg="leg")
    again = copied(remembered)
    assert not again.are_private(X)
    assert (again.training, again.ledger, again.state, again.leg) == (None,) * 4
    assert pickle.dumps(remembered) == pickle.dumps(Remembered())
    assert repr(remembered) == "Remembered()"
