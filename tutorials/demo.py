"""Tune a classifier on records that must not leak, and publish the result.

A logistic regression on kernel features reads handwritten digits. Nine hyperparameters
are tuned: its regularization, and the weight of each row of the image. They are
evaluated on a private validation set. Run it with ``make demo``. The figure is saved as
``build/demo.png``, or as the file given on the command line.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from botorch_dp import DPGIBO, GDP, RandomSearch
from botorch_dp.plots import plot_convergence, plot_ledger

PICTURE = Path(sys.argv[1] if sys.argv[1:] else "build/demo.png")
NUM_STEPS = 20

mpl.use("Agg")
threadpool_limits(1)  # the matrices are small: more threads would be slower


def split_digits(seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return 500 public training images, 897 private ones and 400 public test images.

    All are divided by the standard deviation of the training images.
    """
    images, digits = load_digits(return_X_y=True)
    train, rest, train_y, rest_y = train_test_split(
        images, digits, train_size=500, stratify=digits, random_state=seed
    )
    private, test, private_y, test_y = train_test_split(
        rest, rest_y, test_size=400, stratify=rest_y, random_state=seed
    )
    scale = train.std()
    return (
        (train / scale, train_y),
        (private / scale, private_y),
        (test / scale, test_y),
    )


TRAIN, PRIVATE, TEST = split_digits()

# C, and a factor for each of 8 rows: log scales, with scikit-learn's defaults (C = 1,
# all pixels alike) in the middle.
LOWER, UPPER = [1e-3] + [0.25] * 8, [1e3] + [4.0] * 8
BOUNDS = torch.tensor([LOWER, UPPER], dtype=torch.float64)
DEFAULTS = torch.ones(9, dtype=torch.float64)


def probabilities(x: torch.Tensor, images: np.ndarray) -> np.ndarray:
    """Train with the hyperparameters x, and predict the classes of other images."""
    rows = np.repeat(x[1:].numpy(), 8)
    features = Nystroem(gamma=1 / 64, random_state=0).fit(TRAIN[0] * rows)
    model = LogisticRegression(C=float(x[0]), max_iter=1000)
    model.fit(features.transform(TRAIN[0] * rows), TRAIN[1])
    return model.predict_proba(features.transform(images * rows))


def losses(X: torch.Tensor, data: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
    """Return the log loss of every record (a row) at every point (a column)."""
    images, digits = data
    right = [probabilities(x, images)[np.arange(len(digits)), digits] for x in X]
    return -torch.from_numpy(np.stack(right, axis=-1)).clamp(min=1e-4).log()


def test_loss(X: torch.Tensor) -> torch.Tensor:
    return losses(X, TEST).mean(dim=0)


def main() -> None:
    n, d = len(PRIVATE[1]), len(DEFAULTS)

    # Private. A record changes the gradient of a step by at most 2 clip_norm / n, which
    # the noise hides. Kernel, points per step and update rule are the defaults.
    private = DPGIBO(BOUNDS, n, GDP(mu=1.0), NUM_STEPS, clip_norm=1.0, transform="log")
    found = private.run(lambda X: losses(X, PRIVATE), progress=True)

    # Not private: it returns the best of as many exact validation losses.
    random = RandomSearch(BOUNDS, n, NUM_STEPS, batch_size=d + 1, transform="log")
    guessed = random.run(lambda X: losses(X, PRIVATE), progress=True)

    # The exact validation loss of a published point would be another release, which
    # nobody has paid for. So all of them are evaluated on public images.
    print(f"\nTuned on {n} private images, evaluated on {len(TEST[1])} public ones:")
    print(f"\n{'':36}{'trained':>8}{'log loss':>10}{'errors':>9}")
    for name, x, evaluations in (
        ("scikit-learn's defaults, untuned", DEFAULTS, 1),
        ("random search, NOT private", guessed.x, guessed.num_evaluations),
        ("DP-GIBO, private (mu = 1)", found.x, found.num_evaluations),
    ):
        errors = (probabilities(x, TEST[0]).argmax(axis=-1) != TEST[1]).mean()
        loss = float(test_loss(x.unsqueeze(0)))
        print(f"{name:36}{evaluations:>8}{loss:>10.3f}{errors:>9.1%}")
    epsilon = found.certificate.epsilons[1e-5]
    print(f"\nThe cost is epsilon = {epsilon:.3g} at delta = 1e-5. The certificate:")
    print(f"\n{found.certificate}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="tight")
    plot_convergence(guessed, test_loss, label="random search, NOT private", ax=left)
    plot_convergence(
        found, test_loss, initial_x=DEFAULTS, label="DP-GIBO, private", ax=left
    )
    left.set(title="What was found", ylabel="log loss on public images")
    plot_ledger(private.ledger, ax=right).set_title("What it cost")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    print(f"\nSaved a plot of convergence and budget to {PICTURE}")


if __name__ == "__main__":
    main()
