"""The sampler proposes what its optimizer asks for, and a study gets better."""

import pickle
import re
from pathlib import Path

import pytest
import torch

optuna = pytest.importorskip("optuna")

from optuna.distributions import FloatDistribution, IntDistribution  # noqa: E402

from botorch_dp import FittedGIBO, MinUCB  # noqa: E402
from examples.optunahub_local_bo import LocalBOSampler, example  # noqa: E402

pytestmark = pytest.mark.cpu_only("parameters of trials are floats")
PACKAGE = Path(example.__file__).parent
SPACE = {"x": FloatDistribution(-1.0, 3.0), "y": FloatDistribution(1e-3, 1e1, log=True)}


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


def suggest(trial):
    return trial.suggest_float("x", -1, 3), trial.suggest_float("y", 1e-3, 10, log=True)


def loss(x, y):
    return (x - 0.5) ** 2 + torch.tensor(y, device="cpu").log10().item() ** 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("kind", "options"), [(MinUCB, {}), (FittedGIBO, {"method": "gibo"})]
)
def test_the_points_are_those_of_the_optimizer(kind, options, sign):
    direction = "minimize" if sign > 0 else "maximize"
    sampler = LocalBOSampler(SPACE, num_steps=3, **options)
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(lambda trial: sign * loss(*suggest(trial)), n_trials=12)
    bounds = torch.tensor(
        [[-1.0, 1e-3], [3.0, 10.0]], dtype=torch.float64, device="cpu"
    )
    opt = kind(bounds, num_records=1, num_steps=3, transform=["linear", "log"])
    for step in range(3):
        points = opt.ask()
        trials = study.trials[4 * step : 4 * step + 4]
        found = [[trial.params["x"], trial.params["y"]] for trial in trials]
        assert torch.allclose(points, points.new_tensor(found))
        opt.tell(points.new_tensor([loss(*point) for point in found]))


@pytest.mark.parametrize("trials", [0, 4, 6, 12])
def test_a_pickled_sampler_goes_on(trials):
    studies = []
    for pickled in (False, True):
        sampler = LocalBOSampler(SPACE, num_steps=3, seed=0)
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: loss(*suggest(trial)), n_trials=trials)
        if pickled:
            study.sampler = pickle.loads(pickle.dumps(study.sampler))
        study.optimize(lambda trial: loss(*suggest(trial)), n_trials=14 - trials)
        studies.append([trial.params for trial in study.trials])
    assert studies[0] == studies[1]


def test_processes_draw_different_points_at_random():
    sampler = LocalBOSampler(SPACE, num_steps=1, seed=0)
    sampler.reseed_rng()
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: loss(*suggest(trial)), n_trials=5)
    other = optuna.create_study(sampler=LocalBOSampler(SPACE, num_steps=1, seed=0))
    other.optimize(lambda trial: loss(*suggest(trial)), n_trials=5)
    assert study.trials[3].params == other.trials[3].params
    assert study.trials[4].params != other.trials[4].params


def test_a_study_gets_better():
    study = example.run(48)  # four steps
    first = min(trial.value for trial in study.trials[:12])
    assert study.best_value < 0.2 * first


def test_after_the_last_step_trials_are_random():
    sampler = LocalBOSampler(SPACE, num_steps=1, batch_size=2, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: loss(*suggest(trial)), n_trials=4)
    assert all(trial.state.is_finished() for trial in study.trials)
    assert study.trials[3].params != study.trials[2].params


def test_more_trials_than_a_step_has_in_parallel():
    study = optuna.create_study(sampler=LocalBOSampler(SPACE, batch_size=2, seed=0))
    trials = [study.ask() for _ in range(4)]  # two of the step, two at random
    values = [loss(*suggest(trial)) for trial in trials]
    for trial, value in zip(reversed(trials), reversed(values), strict=True):
        study.tell(trial, value)
    assert len(study.sampler._optimizer.history) == 1


def test_failed_trials_count_as_the_worst_of_their_step():
    study = optuna.create_study(sampler=LocalBOSampler(SPACE, batch_size=3))
    told = []
    tell = study.sampler._optimizer.tell
    study.sampler._optimizer.tell = lambda losses: (told.append(losses), tell(losses))
    values = iter([1.0, None, 2.0])
    for _ in range(3):
        trial, value = study.ask(), next(values)
        suggest(trial)
        state = None if value is not None else optuna.trial.TrialState.FAIL
        study.tell(trial, value, state=state)
    assert told[0].tolist() == [[1.0, 2.0, 2.0]]
    for _ in range(3):  # of a step without values, all are evaluated again
        trial = study.ask()
        suggest(trial)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert len(told) == 1
    assert study.ask(SPACE).params == study.trials[3].params


@pytest.mark.parametrize(
    "distribution",
    [
        IntDistribution(0, 3),
        FloatDistribution(0, 1, step=0.1),
        FloatDistribution(1.0, 1.0),
    ],
)
def test_other_distributions_are_refused(distribution):
    with pytest.raises(ValueError, match=r"search_space\['z'\] must be"):
        LocalBOSampler({"z": distribution})


@pytest.mark.parametrize(
    ("space", "options", "match"),
    [({}, {}, "at least one parameter"), (SPACE, {"method": "tpe"}, "one of min_ucb")],
)
def test_bad_arguments(space, options, match):
    with pytest.raises(ValueError, match=match):
        LocalBOSampler(space, **options)


def test_several_objectives_are_refused():
    study = optuna.create_study(
        sampler=LocalBOSampler(SPACE), directions=["minimize", "minimize"]
    )
    with pytest.raises(ValueError, match="one objective"):
        suggest(study.ask())


def test_the_package_has_the_layout_of_optunahub():
    names = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    files = {"README.md", "__init__.py", "LICENSE", "example.py", "requirements.txt"}
    assert files <= names
    text = (PACKAGE / "README.md").read_text()
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()
    keys = [line.partition(":")[0] for line in front.splitlines()]
    assert keys == [
        "author",
        "title",
        "description",
        "tags",
        "optuna_versions",
        "license",
    ]
    headings = re.findall(r"^## (.*)$", body, re.MULTILINE)
    assert {"Abstract", "APIs", "Installation", "Example"} <= set(headings)
    assert "not private" in body
