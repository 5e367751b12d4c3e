"""Checkpoints of searches: killed at any moment, resumed, and public throughout."""

import json
import os
import pickle
import stat
import subprocess
import sys
import uuid
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    InvalidArgumentError,
    LostReleaseWarning,
    OptimizerStateError,
)
from botorch_dp.integrations.sklearn import Integer, Real
from botorch_dp.integrations.sklearn.search_checkpoint import ledger_of, settings_of
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.privacy.noise import SystemNoise
from tests.integrations.sklearn.interrupted import (
    BUDGET,
    MIXED,
    NUMBERS,
    SEARCHES,
    Failing,
    fit,
    private,
    search_of,
    whole,
)

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore::botorch_dp.exceptions.SearchStoppedWarning"),
]
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]


# A kind of search, when it is killed, at which occurrence, and what is lost by it.
KILLED = [
    ("both", "model", 3, 0),  # in the middle of the choice
    ("both", "charged", 1, 1),  # the choice is paid for, and not drawn
    ("both", "drawn", 1, 1),  # it is drawn, and not kept
    ("both", "saved", 2, 0),  # it is kept, and gradients have not begun
    ("both", "charged", 3, 1),  # the same for the second gradient
    ("both", "drawn", 3, 1),
    ("both", "saved", 5, 0),
    ("both", "charged", 5, 1),  # and for the score
    ("both", "drawn", 5, 1),
    ("choice", "drawn", 1, 1),
]
OFTEN = [("saved", 2), ("charged", 1), ("drawn", 1)]


@pytest.fixture(scope="module")
def remains(tmp_path_factory):
    """A folder with what killed searches left behind."""
    folder = tmp_path_factory.mktemp("killed")
    cases = []
    for kind, moment, number, _ in KILLED:
        (folder / f"{kind}-{moment}-{number}").mkdir()
        path = folder / f"{kind}-{moment}-{number}" / "search.pt"
        cases.append((kind, str(path), moment, number))
    cases += [("both", str(folder / "often.pt"), *case) for case in OFTEN]
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.sklearn.killed", json.dumps(cases)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True"] * len(cases), done.stderr
    return folder


def num_charged(path):
    return len(Ledger(f"{path}.ledger"))


class TestKilled:
    @pytest.mark.parametrize(("kind", "moment", "number", "num_lost"), KILLED)
    def test_at_any_moment(self, kind, moment, number, num_lost, remains):
        path = remains / f"{kind}-{moment}-{number}" / "search.pt"
        before, sizes = num_charged(path), SEARCHES[kind][1]
        Failing.fail(None)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            search = fit(search_of(kind, checkpoint=path))
        lost = [w for w in said if w.category is LostReleaseWarning]
        assert len(lost) == num_lost
        # Nothing is repeated for free, and nothing that was kept is paid for twice.
        assert num_charged(path) == len(sizes) >= before
        assert search.certificate_.num_releases == len(sizes)
        is_lost = moment != "saved" and num_lost
        assert ("lost_releases" in str(search.certificate_)) == bool(is_lost)
        expected = whole(kind)
        for delta, epsilon in expected.certificate_.epsilons.items():
            assert search.certificate_.epsilons[delta] == pytest.approx(epsilon)
        chosen = 0 if (moment, number) in (("charged", 1), ("drawn", 1)) else 4
        gradients = 0 if kind == "choice" else 3 - (bool(is_lost) and number == 3)
        assert len(search.history_) == chosen + gradients
        assert hasattr(search, "best_score_") == (kind == "both" and number != 5) or (
            moment == "saved"
        )
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert {*os.listdir(path.parent)} == {"search.pt", "search.pt.ledger"}

    def test_again_and_again(self, remains):
        """Every draw of every process is in the ledger, and none comes twice."""
        path = remains / "often.pt"
        Failing.fail(None)
        with pytest.warns(LostReleaseWarning, match=r"2 release\(s\)"):
            search = fit(search_of("both", checkpoint=path))
        assert num_charged(path) == 5
        assert len(search.history_) == 4 + 1


class TestResumed:
    @pytest.mark.parametrize("kind", [*SEARCHES])
    def test_like_a_search_that_was_never_stopped(self, kind, tmp_path, monkeypatch):
        """Without noise, the parts lead where the whole leads."""
        for name in ("add_gaussian",):
            monkeypatch.setattr(SystemNoise, name, lambda self, value, std: value)
        settings = {"random_state": None, "guarantee": ApproxDP(1e4, 1e-6)}
        parts = search_of(
            kind, **settings, checkpoint=tmp_path / "a", max_fits=SEARCHES[kind][1][0]
        )
        Failing.fail(None)
        for _ in range(6):
            fit(parts)
        assert parts.stopped_ is None
        assert num_charged(tmp_path / "a") == len(SEARCHES[kind][1])
        if kind == "gradients":  # otherwise candidates differ
            Failing.fail(None)
            at_once = fit(search_of(kind, **settings))
            assert parts.best_params_ == pytest.approx(at_once.best_params_, abs=0.1)

    def test_a_finished_search_trains_nothing(self, tmp_path):
        path = tmp_path / "search.pt"
        Failing.fail(None)
        first = fit(search_of("both", checkpoint=path))
        Failing.fail(None)
        again = fit(search_of("both", checkpoint=path, refit=False))
        assert Failing.num_fits == 0
        assert again.best_params_ == first.best_params_
        assert again.best_score_ == first.best_score_
        assert again.history_ == first.history_
        assert again.num_fits_ == first.num_fits_ == 11
        assert str(again.certificate_) == str(first.certificate_)
        assert num_charged(path) == 5

    def test_candidates_of_the_first_process(self, tmp_path):
        """Without a seed they are random, and the choice must be among them."""
        path = tmp_path / "search.pt"
        settings = {"random_state": None, "checkpoint": path}
        first = fit(search_of("choice", **settings))
        assert fit(search_of("choice", **settings)).history_ == first.history_

    def test_seeded_noise_is_new(self, tmp_path, monkeypatch):
        from botorch_dp.privacy.noise import SeededNoise

        drawn, draw = [], SeededNoise.add_gaussian

        def spy(self, value, std):
            found = draw(self, value, std)
            drawn.append(float(((found - value) / std).reshape(-1)[0]))
            return found

        search = search_of("both", checkpoint=tmp_path / "a", max_fits=4)
        with monkeypatch.context() as patch:
            from botorch_dp.privacy import GaussianMechanism

            mechanism_draw = GaussianMechanism._draw

            def released(self, value):
                with monkeypatch.context() as inner:
                    inner.setattr(SeededNoise, "add_gaussian", spy)
                    return mechanism_draw(self, value)

            patch.setattr(GaussianMechanism, "_draw", released)
            fit(search)
            while fit(search.set_params(max_fits=4)).stopped_:
                pass
        assert len(drawn) == 4
        assert len({round(value, 9) for value in drawn}) == 4

    def test_continuations_have_files_of_their_own(self, tmp_path):
        path, ledger = tmp_path / "a", Ledger(tmp_path / "ledger", cap=GDP(3.0))

        def started():
            settings = {"checkpoint": path, "ledger": ledger}
            return fit(search_of(guarantee=GDP(1.0), **settings))

        Failing.fail(None)
        search = started().set_params(max_fits=2)
        search.resume(**private(), guarantee=GDP(1.0))
        assert search.stopped_ == "max_fits"
        assert {*os.listdir(tmp_path)} == {"a", "a.1", "ledger"}
        # Another process: the fit is read, and its continuation goes on.
        again = started()
        again.resume(**private(), guarantee=GDP(1.0))
        assert again.stopped_ is None
        assert again.history_[:4] == search.history_
        assert len(again.history_) == len(ledger) == 6
        again.resume(**private(), guarantee=GDP(1.0))
        assert (tmp_path / "a.2").exists()
        assert len(ledger) == 9

    def test_a_stopped_fit_that_was_continued_otherwise_does_not_go_on(self, tmp_path):
        path, ledger = tmp_path / "a", Ledger(tmp_path / "ledger", cap=GDP(3.0))
        settings = {"checkpoint": path, "ledger": ledger, "guarantee": GDP(1.0)}
        Failing.fail(None)
        search = fit(search_of(**settings, max_fits=2))
        start = search.best_params_
        search.set_params(max_fits=None).resume(**private(), guarantee=GDP(1.0))
        assert len(ledger) == 4
        again = fit(search_of(**settings))
        assert again.best_params_ == start
        again.resume(**private(), guarantee=GDP(1.0))
        assert again.best_params_ == search.best_params_
        assert len(ledger) == 4  # all of it was in the files

    def test_pickled(self, tmp_path):
        search = fit(search_of(checkpoint=tmp_path / "a", max_fits=2))
        again = pickle.loads(pickle.dumps(search)).set_params(max_fits=None)
        assert fit(again).history_[:1] == search.history_
        assert num_charged(tmp_path / "a") == 3

    def test_the_ledger_was_lost(self, tmp_path):
        """What the checkpoint knows to be spent is charged to the new one."""
        path = tmp_path / "a"
        fit(search_of("both", checkpoint=path, max_fits=6))
        os.unlink(f"{path}.ledger")
        search = fit(search_of("both", checkpoint=path))
        assert num_charged(path) == search.certificate_.num_releases == 5

    def test_the_ledger_of_a_continued_search_was_lost(self, tmp_path):
        """The fit does not know what its continuations have spent."""
        path = tmp_path / "a"
        settings = {"guarantee": GDP(1.0), "checkpoint": path}
        search = fit(search_of(**settings, ledger=Ledger(tmp_path / "b", cap=GDP(3.0))))
        search.resume(**private(), guarantee=GDP(1.0))
        Failing.fail(None)
        new = Ledger(tmp_path / "c", cap=GDP(3.0))
        with pytest.raises(OptimizerStateError, match=r"a\.1' shows that this search"):
            fit(search_of(**settings, ledger=new))
        assert Failing.num_fits == len(new) == 0


OTHERS = {
    "guarantee": {"guarantee": ApproxDP(2.0, 1e-6)},
    "num_steps": {"num_steps": 2},
    "space": {"space": {"level": Real(0.0, 2.0)}},
    "loss_range": {"loss_range": (0.0, 5.0)},
    "method": {"method": "auto", "num_steps": None},
    "release_score": {"release_score": True, "max_evaluations": 7},
    "scoring": {"scoring": "neg_mean_absolute_error"},
    "random_state": {"random_state": 1},
}


class TestRefused:
    @pytest.mark.parametrize("name", [*OTHERS])
    def test_other_settings(self, name, tmp_path):
        Failing.fail(None)
        fit(search_of(checkpoint=tmp_path / "a", max_fits=2))
        Failing.fail(None)
        with pytest.raises(
            OptimizerStateError, match=f"other settings: .*{name}=.* there, .* here"
        ):
            fit(search_of(checkpoint=tmp_path / "a", **OTHERS[name]))
        assert Failing.num_fits == 0
        assert num_charged(tmp_path / "a") == 1

    def test_other_data(self, tmp_path):
        fit(search_of(checkpoint=tmp_path / "a"))
        with pytest.raises(OptimizerStateError, match="num_records=400 there, 399 her"):
            fit(search_of(checkpoint=tmp_path / "a"), **private(n=399))

    def test_another_estimator(self, tmp_path):
        fit(search_of(checkpoint=tmp_path / "a"))
        search = search_of(checkpoint=tmp_path / "a")
        search.set_params(estimator=Failing(scale=2.0))
        with pytest.raises(OptimizerStateError, match=r"estimator=Failing\(\) there"):
            fit(search)

    def test_damaged(self, tmp_path):
        path = tmp_path / "a"
        path.write_bytes(b"not a checkpoint")
        with pytest.raises(OptimizerStateError, match="cannot be read"):
            fit(search_of(checkpoint=path))
        write_checkpoint(path, {"version": 2})
        with pytest.raises(OptimizerStateError, match="not written by this version"):
            fit(search_of(checkpoint=path))

    @pytest.mark.parametrize(
        "change",
        [
            lambda state: state.pop("gradients"),
            lambda state: state["gradients"].pop("parameter"),
            lambda state: state["gradients"]["history"].extend(
                state["gradients"]["history"]
            ),
            lambda state: state["score"].update(loss=0.1),
            lambda state: state.update(num_fits="many"),
        ],
    )
    def test_changed(self, change, tmp_path):
        """A state with more releases than charges, or with parts that lack."""
        path = tmp_path / "a"
        fit(search_of("both", checkpoint=path, max_fits=8))
        kept = read_checkpoint(path, CPU)
        change(kept["state"])
        write_checkpoint(path, kept)
        with pytest.raises(OptimizerStateError):
            fit(search_of("both", checkpoint=path))

    def test_ledgers_in_memory(self, tmp_path):
        with pytest.raises(InvalidArgumentError, match="a ledger that outlives the pr"):
            fit(search_of(checkpoint=tmp_path / "a", ledger=Ledger(cap=BUDGET)))
        assert os.listdir(tmp_path) == []

    def test_no_file_names(self):
        with pytest.raises(InvalidArgumentError, match="checkpoint must be a file na"):
            ledger_of(None, 3, BUDGET)


class TestPublic:
    def test_files_do_not_depend_on_private_records(self, tmp_path, monkeypatch):
        """Two data sets that differ in everything, and releases that are the same."""
        found = []
        now = "2026-01-01T00:00:00.000+00:00"
        monkeypatch.setattr("botorch_dp.privacy.ledger._now", lambda: now)
        for level in (0.1, 0.9):
            numbers = iter(range(100))
            monkeypatch.setattr(
                uuid, "uuid4", lambda numbers=numbers: uuid.UUID(int=next(numbers))
            )
            path = tmp_path / "search.pt"
            search = search_of(
                "choice", PureDP(1e-9), checkpoint=path, num_steps=2, num_candidates=6
            )
            Failing.fail(None)
            fit(search.set_params(max_fits=1), **private(level))
            files = [path.read_bytes()]
            fit(search.set_params(max_fits=None), **private(level))
            found.append([*files, path.read_bytes(), pickle.dumps(vars(search))])
            for name in os.listdir(tmp_path):
                os.unlink(tmp_path / name)
        assert found[0] == found[1]

    def test_files_hold_no_private_values(self, tmp_path):
        data = private()
        Failing.fail(None)
        search = fit(search_of("both", checkpoint=tmp_path / "a"), **data)
        kept = (tmp_path / "a").read_bytes()
        exact = np.square(search.predict(data["X_val"]) - data["y_val"])
        for value in (*data["y_val"], *exact, exact.mean()):
            assert np.float64(value).tobytes() not in kept


def test_settings():
    def loss(model, X, y):
        return y

    class Thing:
        pass

    params = {
        "estimator": Ridge(alpha=2.0),
        "space": {"alpha": Integer(1, 3)},
        "scoring": loss,
        "method_options": {"a": Thing()},
        "checkpoint": "file",
        "verbose": 1,
    }
    found = settings_of(params, num_records=3, guarantee=BUDGET)
    assert found["estimator"] == "Ridge(alpha=2.0)"
    assert found["scoring"].endswith("test_settings.<locals>.loss")
    assert "0x" not in found["method_options"]
    assert found["num_records"] == "3"
    assert not {"checkpoint", "verbose"} & found.keys()
    assert settings_of({"space": NUMBERS}) != settings_of({"space": MIXED})
