"""Training tasks from small arrays, and their search spaces."""

import numpy as np
import pytest
import torch

from benchmarks import _selection_guesses as guesses
from benchmarks import _selection_tasks as tasks
from benchmarks._training_pools import ADAM, SGD, Setting
from botorch_dp.integrations.opacus.guesses import adam_guess, linear_scaling_guess

pytestmark = pytest.mark.default_device
CATEGORIES = {"cat_sex": 2, "cat_race": 5}


def adult_arrays(size=50):
    random = np.random.default_rng(0)
    names = [
        "age",
        "fnlwgt",
        "education-num",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
    ]
    arrays = {
        "numeric": random.integers(0, 200, (size, 6)),
        "numeric_names": np.array(names),
        "y": random.integers(0, 2, size).astype(np.uint8),
    }
    for key, levels in CATEGORIES.items():
        arrays[key] = random.integers(0, levels, size).astype(np.uint8)
        arrays[key.replace("cat_", "levels_")] = np.array(list("abcde")[:levels])
    return arrays


def fare_arrays(size=40):
    random = np.random.default_rng(0)
    names = [
        f"{end}_{axis}tude"
        for end in ("pickup", "dropoff")
        for axis in ("longi", "lati")
    ]
    arrays = {name: random.random(size).astype(np.float32) for name in names}
    return {**arrays, "fare_amount": 10 * random.random(size).astype(np.float32)}


class TestMNIST:
    def test_pixels_are_means_of_four(self):
        images = np.arange(2 * 28 * 28).reshape(2, 28, 28) % 251
        images = images.astype(np.uint8)
        task = tasks.mnist(
            {
                "X_train": images,
                "y_train": np.array([3, 4], dtype=np.uint8),
                "X_test": images[:1],
                "y_test": np.array([3], dtype=np.uint8),
            }
        )
        assert task.train_inputs.shape == (2, 196)
        expected = images[1, 2:4, 4:6].astype(float).mean() / 255
        assert float(task.train_inputs[1, 14 + 2]) == pytest.approx(expected)
        assert task.train_targets.tolist() == [3, 4]
        assert task.num_outputs == 10


class TestAdult:
    def test_inputs_are_between_zero_and_one(self):
        task = tasks.adult(adult_arrays())
        inputs = torch.cat([task.train_inputs, task.test_inputs])
        assert inputs.shape == (50, 5 + sum(CATEGORIES.values()))
        assert float(inputs.min()) >= 0
        assert float(inputs.max()) <= 1
        # One category of each kind.
        assert inputs[:, 5:].sum(dim=1).tolist() == [2.0] * 50
        assert task.num_hidden == 0

    def test_the_split_is_fixed_and_complete(self):
        first, second = tasks.adult(adult_arrays()), tasks.adult(adult_arrays())
        assert torch.equal(first.train_inputs, second.train_inputs)
        assert len(first.train_inputs) == round(50 * 36_000 / 45_222)
        assert len(first.train_inputs) + len(first.test_inputs) == 50


class TestFares:
    def test_inputs_are_distances(self):
        arrays = fare_arrays()
        task = tasks.fares(arrays)
        inputs = torch.cat([task.train_inputs, task.test_inputs])
        targets = torch.cat([task.train_targets, task.test_targets])
        row = int((targets - float(arrays["fare_amount"][7])).abs().argmin())
        east = abs(arrays["dropoff_longitude"][7] - arrays["pickup_longitude"][7])
        north = abs(arrays["dropoff_latitude"][7] - arrays["pickup_latitude"][7])
        expected = [east, north, np.hypot(east, north)]
        np.testing.assert_allclose(inputs[row].numpy(), expected, rtol=1e-5)
        assert task.num_outputs == 1

    def test_known_units_scale_everything(self):
        task = tasks.fares(fare_arrays())
        used, setting = guesses.in_known_units(guesses.library_defaults)(task, 1.0)
        assert setting == Setting(1e-3, 1.0, ADAM)
        torch.testing.assert_close(used.train_inputs, 50 * task.train_inputs)
        torch.testing.assert_close(used.test_targets, task.test_targets / 10)
        outputs = task.test_targets[None, None] + 3.0
        torch.testing.assert_close(
            used.scores(outputs / 10, used.test_targets),
            task.scores(outputs, task.test_targets),
        )


class TestSpace:
    space = tasks.SPACES["fares"]

    def test_draws_are_in_the_space_and_fill_it(self):
        settings = self.space.draw(400, seed=0)
        points = self.space.unit(settings)
        assert float(points.min()) >= 0
        assert float(points.max()) <= 1
        # The mean of 400 uniform numbers has standard error 0.0144.
        torch.testing.assert_close(
            points.mean(dim=0), torch.full((4,), 0.5).double(), atol=0.1, rtol=0
        )
        assert {s.optimizer for s in settings} == {ADAM, SGD}

    def test_seeds_differ(self):
        assert self.space.draw(3, seed=0) == self.space.draw(3, seed=0)
        assert self.space.draw(3, seed=0) != self.space.draw(3, seed=1)


def test_good_guesses_follow_the_task(monkeypatch):
    monkeypatch.setattr(guesses, "noise_of_one", lambda used, _: 100 / used.num_steps)
    task = tasks.adult(adult_arrays(size=4000))
    own = guesses.guesses_of("adult")["no tuning, linear scaling"](task, 2.0)
    given = guesses.guesses_of("adult")["no tuning, linear scaling, the task's steps"](
        task, 2.0
    )
    assert own[0].num_steps == 200
    assert given[0].num_steps == task.num_steps
    assert given[0].sampling_rate == task.sampling_rate
    expected = linear_scaling_guess(
        num_records=task.num_records,
        sample_rate=task.sampling_rate,
        num_steps=100,
        noise_multiplier=1.0,
    )
    assert given[1] == Setting(expected.learning_rate, expected.max_grad_norm, SGD)
    assert len(guesses.guesses_of("fares")) == 2 * len(guesses.guesses_of("adult"))


@pytest.mark.parametrize("draw", [guesses.drawn_around, guesses.listed_around])
def test_settings_around_a_guess_are_within_a_factor_of_ten(draw):
    task = tasks.adult(adult_arrays(size=4000))
    settings = draw(task, 2.0, 40, 0)
    assert {s.optimizer for s in settings} == {ADAM, SGD}
    for setting in settings:
        assert 0.1 <= setting.clip_norm <= 10
        rule = adam_guess if setting.optimizer == ADAM else linear_scaling_guess
        guess = rule(
            num_records=task.num_records,
            sample_rate=task.sampling_rate,
            num_steps=task.num_steps,
            max_grad_norm=setting.clip_norm,
            noise_multiplier=2.0,
        )
        assert 0.099 <= setting.learning_rate / guess.learning_rate <= 10.01


def test_fewer_records_of_mnist():
    images = np.zeros((6100, 28, 28), dtype=np.uint8)
    classes = np.arange(6100) % 10
    task = tasks.mnist_6000(
        {"X_train": images, "y_train": classes, "X_test": images[:1], "y_test": [0]}
    )
    assert task.num_records == 6000
    assert task.train_targets.tolist() == classes[:6000].tolist()
