"""Settings without tuning, for the benchmark of private selection.

The good guesses are the library's: the linear scaling rule, and Adam with a learning
rate that depends on the number of steps. They know the number of records and the
guarantee. Each is tried with the steps and batches that it chooses itself (200 steps,
16 batches an epoch), and with those of the task.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks._selection_plans import noise_of_one
from benchmarks._selection_tasks import DOLLARS
from benchmarks._training_pools import ADAM, Setting, Task
from botorch_dp.integrations.opacus.guesses import (
    TrainingGuess,
    adam_guess,
    linear_scaling_guess,
    settings_around,
)

# What a run needs: the task, perhaps with other steps and batches, and a setting.
Guess = Callable[[Task, float], tuple[Task, Setting]]
DEGREES = 50.0  # one over a distance of 0.02, about the distances in the file


def library_defaults(task: Task, epsilon: float) -> tuple[Task, Setting]:
    """Return Adam with torch's defaults and clip norm 1, as in Opacus's examples."""
    del epsilon
    return task, Setting(learning_rate=1e-3, clip_norm=1.0, optimizer=ADAM)


def good_guess(rule: Callable[..., TrainingGuess], *, own_steps: bool) -> Guess:
    """Return a guess of the library.

    Args:
        rule: The library's function.
        own_steps: Whether the guess chooses the number of steps and the batch size.
    """

    def guess(task: Task, epsilon: float) -> tuple[Task, Setting]:
        steps = {"sample_rate": task.sampling_rate, "num_steps": task.num_steps}
        facts: dict[str, Any] = {"num_records": task.num_records}
        if not own_steps:
            facts |= steps
        found = rule(**facts, noise_multiplier=1.0)  # for its steps and batches
        used = replace(task, sampling_rate=found.sample_rate, num_steps=found.num_steps)
        found = rule(**facts, noise_multiplier=noise_of_one(used, epsilon))
        return used, Setting(found.learning_rate, found.max_grad_norm, found.optimizer)

    return guess


def drawn_around(task: Task, noise: float, count: int, seed: int) -> list[Setting]:
    """Draw settings within a factor of ten of good guesses, both ways.

    The optimizer is random, the clip norm is within a factor of ten of 1, and the
    learning rate within a factor of ten of the guess for this optimizer, clip norm and
    noise multiplier.
    """
    random = np.random.default_rng([seed, 4])
    settings = []
    for _ in range(count):
        rule = (linear_scaling_guess, adam_guess)[random.integers(2)]
        found = rule(
            num_records=task.num_records,
            sample_rate=task.sampling_rate,
            num_steps=task.num_steps,
            max_grad_norm=float(10 ** random.uniform(-1, 1)),
            noise_multiplier=noise,
        )
        rate = found.learning_rate * float(10 ** random.uniform(-1, 1))
        settings.append(Setting(rate, found.max_grad_norm, found.optimizer))
    return settings


def listed_around(task: Task, noise: float, count: int, seed: int) -> list[Setting]:
    """Return the library's candidates around both guesses, half of them the guesses."""
    facts = {
        "num_records": task.num_records,
        "sample_rate": task.sampling_rate,
        "num_steps": task.num_steps,
        "noise_multiplier": noise,
    }
    guesses = (linear_scaling_guess(**facts), adam_guess(**facts))
    return [
        Setting(found.learning_rate, found.max_grad_norm, found.optimizer)
        for found in settings_around(*guesses, num_settings=count, seed=seed)
    ]


def in_known_units(guess: Guess) -> Guess:
    """Return a guess for fares by someone who knows the units."""

    def informed(task: Task, epsilon: float) -> tuple[Task, Setting]:
        scaled = replace(
            task,
            train_inputs=DEGREES * task.train_inputs,
            test_inputs=DEGREES * task.test_inputs,
            train_targets=task.train_targets / DOLLARS,
            test_targets=task.test_targets / DOLLARS,
            tolerance=task.tolerance / DOLLARS,
        )
        return guess(scaled, epsilon)

    return informed


def guesses_of(name: str) -> dict[str, Guess]:
    """Return the guesses for a task, by the labels of their rows."""
    guesses: dict[str, Guess] = {
        "no tuning, library defaults": library_defaults,
        "no tuning, linear scaling": good_guess(linear_scaling_guess, own_steps=True),
        "no tuning, Adam's guess": good_guess(adam_guess, own_steps=True),
        "no tuning, linear scaling, the task's steps": good_guess(
            linear_scaling_guess, own_steps=False
        ),
        "no tuning, Adam's guess, the task's steps": good_guess(
            adam_guess, own_steps=False
        ),
    }
    if name == "fares":
        guesses |= {
            f"{label}, knows the units": in_known_units(guess)
            for label, guess in guesses.items()
        }
    return guesses
