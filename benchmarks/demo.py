"""The demo over ten splits and noises: minimize beside three other searches.

Writes ``benchmarks/results/demo.json`` and the table made from it. Run it with
``python -m benchmarks.demo``.
"""

import importlib.util
import statistics
from pathlib import Path
from types import ModuleType

import torch

from benchmarks._common import Row, in_parallel, mean_and_error, report

NUM_SEEDS = 10


def load_demo() -> ModuleType:
    """Return the script of ``make demo`` as a module, without running it."""
    path = Path(__file__).parents[1] / "tutorials" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses(seed: int) -> dict[str, float]:
    """Return the log loss on public test images of what each search found."""
    demo = load_demo()
    torch.manual_seed(seed)  # random search; the private noise is new in every run
    data = demo.Digits(seed)
    results, _ = demo.searches(data, progress=False)
    points = {
        "no tuning": demo.DEFAULTS,
        **{name: found.x for name, found in results.items()},
    }
    return {name: float(data.test_loss(x[None])) for name, x in points.items()}


def digits() -> list[Row]:
    """Nine hyperparameters of a classifier of digits, mu = 1

    Log loss on 400 public test images, mean and standard error over random splits, with
    about 200 models each. "Below random search" counts the splits in which the loss is
    lower than that of a random search that is not private.
    """
    found = in_parallel(test_losses, [(seed,) for seed in range(NUM_SEEDS)])
    random = next(name for name in found[0] if "random" in name)
    return [
        {
            "search": name,
            "log loss": mean_and_error(losses[name] for losses in found),
            "median": statistics.median(losses[name] for losses in found),
            "below random search": (
                f"{sum(one[name] < one[random] for one in found)} of {len(found)}"
            ),
        }
        for name in found[0]
    ]


def main() -> None:
    report("demo", "The demo, measured", (digits,))


if __name__ == "__main__":
    main()
