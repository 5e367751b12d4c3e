"""Settings without tuning, for the benchmark of private selection."""

from collections.abc import Callable
from dataclasses import replace

from benchmarks._selection_tasks import DOLLARS
from benchmarks._training_pools import ADAM, SGD, Setting, Task

# What a run needs: the task, perhaps with other steps and batches, and a setting.
Guess = Callable[[Task, float], tuple[Task, Setting]]
DEGREES = 50.0  # one over a distance of 0.02, about the distances in the file


def library_defaults(task: Task, epsilon: float) -> tuple[Task, Setting]:
    """Return Adam with torch's defaults and clip norm 1, as in Opacus's examples."""
    del epsilon
    return task, Setting(learning_rate=1e-3, clip_norm=1.0, optimizer=ADAM)


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
    }
    if name == "fares":
        guesses |= {
            f"{label}, knows the units": in_known_units(guess)
            for label, guess in guesses.items()
        }
    return guesses
