"""The guard refuses whatever could be a score without noise, and passes on the rest."""

import io
import logging
import pickle

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from botorch_dp.exceptions import UnreleasedScoreError
from botorch_dp.integrations.optuna import ReleasedScoresOnly

EXACT = 0.12345678


def stored(storage):
    """Return everything that a storage has, as text."""
    study = storage.get_all_studies()[0]
    return repr((study.user_attrs, storage.get_all_trials(study._study_id)))


@pytest.fixture(params=["memory", "sqlite"])
def guard(request, tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}" if request.param == "sqlite" else None
    return ReleasedScoresOnly(url, public_attributes=["version"])


@pytest.fixture
def study(guard):
    return optuna.create_study(storage=guard)


def leaks(trial):
    trial.suggest_float("x", 0, 1)
    return EXACT


def reports(trial):
    trial.report(EXACT, step=0)
    return EXACT


def sets_attribute(trial):
    trial.set_user_attr("auc", EXACT)
    return EXACT


def sets_constraint(trial):
    trial.storage.set_trial_system_attr(trial._trial_id, "constraints:0", EXACT)
    return EXACT


def prunes(trial):
    trial.report(EXACT, step=0)
    raise optuna.TrialPruned


@pytest.mark.parametrize(
    "objective", [leaks, reports, sets_attribute, sets_constraint, prunes]
)
def test_a_plain_objective_stores_and_logs_nothing(study, guard, objective):
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("optuna").addHandler(handler)
    try:
        with pytest.raises(UnreleasedScoreError) as error:
            study.optimize(objective, n_trials=2)
    finally:
        logging.getLogger("optuna").removeHandler(handler)
    for text in (stored(guard), str(error.value), log.getvalue()):
        assert str(EXACT) not in text
    assert study.trials[0].values is None


def test_tell(study, guard):
    trial = study.ask()
    with pytest.raises(UnreleasedScoreError):
        study.tell(trial, EXACT)
    assert str(EXACT) not in stored(guard)
    study.tell(study.ask(), state=TrialState.FAIL)  # nothing about records


def test_an_admitted_score_is_stored_for_its_trial_once(study, guard):
    first, second = study.ask(), study.ask()
    guard._admit(first._trial_id, 0.5)
    with pytest.raises(UnreleasedScoreError):
        study.tell(second, 0.5)
    study.tell(first, 0.5)
    assert study.best_value == 0.5
    third = study.ask()
    guard._admit(third._trial_id, 0.5)
    with pytest.raises(UnreleasedScoreError):
        study.tell(third, 0.25)


def test_a_batch_that_contains_an_admitted_score(guard):
    study = optuna.create_study(storage=guard, directions=["minimize", "minimize"])
    trial = study.ask()
    guard._admit(trial._trial_id, 0.5)
    with pytest.raises(UnreleasedScoreError):
        study.tell(trial, [0.5, EXACT])


def test_attributes(study, guard):
    trial = study.ask()
    trial.set_user_attr("version", "1.2")
    study.set_user_attr("version", "1.2")
    assert study.user_attrs == {"version": "1.2"}
    with pytest.raises(UnreleasedScoreError, match="'mean'"):
        study.set_user_attr("mean", EXACT)
    assert str(EXACT) not in stored(guard)


def test_names_of_metrics(study, guard):
    with pytest.raises(UnreleasedScoreError) as error:
        study.set_metric_names([str(EXACT)])
    assert str(EXACT) not in str(error.value)
    assert study.metric_names is None
    study.set_metric_names(["version"])
    assert study.metric_names == ["version"]


@pytest.mark.parametrize(
    "brought",
    [
        {"value": EXACT},
        {"value": EXACT, "intermediate_values": {0: EXACT}},
        {"state": TrialState.WAITING, "user_attrs": {"auc": EXACT}},
        {"state": TrialState.WAITING, "system_attrs": {"constraints": [EXACT]}},
        {"state": TrialState.PRUNED, "intermediate_values": {0: EXACT}},
    ],
)
def test_trials_of_other_studies(study, guard, brought):
    with pytest.raises(UnreleasedScoreError):
        study.add_trial(create_trial(**brought))
    assert study.trials == []


def test_parameters_may_be_enqueued(study):
    study.enqueue_trial({"x": 0.25})
    trial = study.ask()
    assert trial.suggest_float("x", 0, 1) == 0.25


def test_a_copy_admits_nothing(tmp_path):
    guard = ReleasedScoresOnly(f"sqlite:///{tmp_path / 'study.db'}")
    study = optuna.create_study(storage=guard)
    trial = study.ask()
    guard._admit(trial._trial_id, 0.5)
    copy = pickle.loads(pickle.dumps(guard))
    with pytest.raises(UnreleasedScoreError):
        copy.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [0.5])


def test_every_method_that_writes_was_considered():
    """A storage that learns to write something new must not pass it on unseen."""
    writes = {
        name
        for name in dir(optuna.storages.BaseStorage)
        if name.startswith(("set_", "create_", "delete_"))
    }
    assert writes == {
        "create_new_study",
        "create_new_trial",
        "delete_study",
        "set_study_system_attr",
        "set_study_user_attr",
        "set_trial_intermediate_value",
        "set_trial_param",
        "set_trial_state_values",
        "set_trial_system_attr",
        "set_trial_user_attr",
    }
