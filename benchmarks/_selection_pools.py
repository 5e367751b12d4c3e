"""The pools of training runs of the benchmark of private selection, and their file.

``python -m benchmarks._selection_pools`` trains what is missing, one pool after the
other, and saves after each one: about 20 minutes on one core. A pool has a seed; its
settings are drawn from the search space of its task.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import RESULTS
from benchmarks._selection_tasks import SPACES, TASKS
from benchmarks._training_pools import Setting, train

PATH = RESULTS / "selection_pools.json"
SEEDS = range(5)
# From one run at epsilon 8 to 16 composed runs at epsilon 1, with half of the budget
# for scores. The multiplier 0 is for the search that is not private.
LEVELS: dict[str, list[float]] = {
    name: [0.0, *(round(float(x), 4) for x in np.geomspace(low, high, count))]
    for name, low, high, count in (
        ("mnist", 0.62, 9.2, 11),
        ("mnist_6000", 0.62, 9.2, 11),
        ("adult", 0.66, 11.5, 11),
        ("fares", 0.75, 15.5, 12),
    )
}
NUM_SETTINGS = {"mnist": 64, "mnist_6000": 64, "adult": 128, "fares": 128}
_DIGITS = 6


@dataclass(frozen=True)
class Pool:
    """The results of a pool of runs.

    Attributes:
        settings: Its P settings.
        levels: The S noise multipliers, increasing.
        train_scores: The mean scores on training records, ``P x S``, double precision.
        test_scores: The mean scores on test records.
    """

    settings: list[Setting]
    levels: Tensor
    train_scores: Tensor
    test_scores: Tensor

    def at(self, noise_multiplier: float) -> tuple[Tensor, Tensor]:
        """Return the training and test scores at a noise multiplier.

        They are interpolated linearly in the logarithm of the noise multiplier, run by
        run; runs of one setting share all of their random numbers.
        """
        if noise_multiplier == 0:
            return self.train_scores[:, 0], self.test_scores[:, 0]
        known = self.levels[1:]
        if not float(known[0]) <= noise_multiplier <= float(known[-1]):
            raise ValueError(
                f"noise_multiplier must be within {float(known[0])} and "
                f"{float(known[-1])}, got {noise_multiplier}."
            )
        value = torch.as_tensor(noise_multiplier, dtype=known.dtype)
        i = int(torch.searchsorted(known, value).clamp(1, len(known) - 1))
        low, high = known[i - 1].log(), known[i].log()
        share = float((value.log() - low) / (high - low))
        return (
            torch.lerp(self.train_scores[:, i], self.train_scores[:, i + 1], share),
            torch.lerp(self.test_scores[:, i], self.test_scores[:, i + 1], share),
        )


def load_pools(name: str, path: Path = PATH) -> list[Pool]:
    """Return the stored pools of a task, in the order of their seeds."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    return [
        Pool(
            SPACES[name].draw(len(results["train"]), int(seed)),
            torch.tensor(results["levels"], dtype=torch.float64),
            torch.tensor(results["train"], dtype=torch.float64),
            torch.tensor(results["test"], dtype=torch.float64),
        )
        for seed, results in sorted(stored.get(name, {}).items())
    ]


def train_missing(names: Sequence[str], path: Path = PATH) -> None:
    """Train the pools that are not in the file."""
    torch.set_num_threads(1)
    for name in names:
        task = TASKS[name]()
        for seed in SEEDS:
            stored = json.loads(path.read_text()) if path.exists() else {}
            if str(seed) in stored.get(name, {}):
                continue
            settings = SPACES[name].draw(NUM_SETTINGS[name], seed)
            scores = train(task, settings, LEVELS[name], seed)
            # Read again, because another process may have stored another task's pool.
            stored = json.loads(path.read_text()) if path.exists() else {}
            stored.setdefault(name, {})[str(seed)] = {
                "levels": LEVELS[name],
                **{
                    key: [[round(float(x), _DIGITS) for x in row] for row in values]
                    for key, values in zip(("train", "test"), scores, strict=True)
                },
            }
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(stored) + "\n")
            os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(TASKS))
    train_missing(parser.parse_args().names)


if __name__ == "__main__":
    main()
