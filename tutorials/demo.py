"""Tune a classifier on records that must not leak, and publish the result.

A logistic regression on kernel features reads handwritten digits. Nine hyperparameters
are tuned: its regularization, and the weight of each row of the image. They are
evaluated on a private validation set. Run it with ``make demo``, and then ``make
report``, which opens the report in the browser.

The figure is saved as ``build/demo.png``, or as the file given on the command line. The
ledger, the certificate (JSON) and the report (HTML) are saved in ``build``.
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

from botorch_dp import GDP, Ledger, PrivateBO, RandomSearch, minimize
from botorch_dp.plots import plot_convergence, plot_ledger
from botorch_dp.privacy import Declaration
from botorch_dp.privacy.report import write_page

FOLDER = Path("build")
LEDGER, CERTIFICATE = FOLDER / "ledger.sqlite", FOLDER / "certificate.json"
GUARANTEE = GDP(mu=1.0)
DELTA = 1e-5
# C, and a factor for each of 8 rows: log scales, with scikit-learn's defaults (C = 1,
# all pixels alike) in the middle.
LOWER, UPPER = [1e-3] + [0.25] * 8, [1e3] + [4.0] * 8
BOUNDS = torch.tensor([LOWER, UPPER], dtype=torch.float64)
DEFAULTS = torch.ones(9, dtype=torch.float64)
# A probability counts as at least 1e-4, so that the log loss has a range.
LEAST_PROBABILITY = 1e-4
LOSS_RANGE = (0.0, -float(np.log(LEAST_PROBABILITY)))
DECLARATION = Declaration(
    data_set="Handwritten digits",
    purpose="Show what the library does: tune a classifier on private images",
    owner="Nobody: the images are a public data set of scikit-learn",
)
RANDOM, CHOICE = "random search, NOT private", "the best of 200, by permute-and-flip"
FOUND = "minimize (DP-GIBO), private"


class Digits:
    """500 public training images, 897 private ones and 400 public test images."""

    def __init__(self, seed: int = 0) -> None:
        images, digits = load_digits(return_X_y=True)
        train, rest, train_y, rest_y = train_test_split(
            images, digits, train_size=500, stratify=digits, random_state=seed
        )
        private, test, private_y, test_y = train_test_split(
            rest, rest_y, test_size=400, stratify=rest_y, random_state=seed
        )
        scale = train.std()
        self.train = train / scale, train_y
        self.private = private / scale, private_y
        self.test = test / scale, test_y

    def probabilities(self, x: torch.Tensor, images: np.ndarray) -> np.ndarray:
        """Train with the hyperparameters x, and predict the classes of images."""
        rows = np.repeat(x[1:].numpy(), 8)
        features = Nystroem(gamma=1 / 64, random_state=0).fit(self.train[0] * rows)
        model = LogisticRegression(C=float(x[0]), max_iter=1000)
        model.fit(features.transform(self.train[0] * rows), self.train[1])
        return model.predict_proba(features.transform(images * rows))

    def losses(self, X: torch.Tensor, data: tuple[np.ndarray, ...]) -> torch.Tensor:
        """Return the log loss of every record (a row) at every point (a column)."""
        images, digits = data
        right = [
            self.probabilities(x, images)[np.arange(len(digits)), digits] for x in X
        ]
        return (
            -torch.from_numpy(np.stack(right, axis=-1)).clamp(LEAST_PROBABILITY).log()
        )

    def private_losses(self, X: torch.Tensor) -> torch.Tensor:
        return self.losses(X, self.private)

    def test_loss(self, X: torch.Tensor) -> torch.Tensor:
        return self.losses(X, self.test).mean(dim=0)

    def test_errors(self, x: torch.Tensor) -> float:
        images, digits = self.test
        return float((self.probabilities(x, images).argmax(axis=-1) != digits).mean())


def searches(
    data: Digits, *, path: Path | None = None, progress: bool = True
) -> tuple[dict, Ledger]:
    """Run all searches, each with about 200 models, and return their results.

    The ledger is a new file at ``path``, or is kept in memory.
    """
    n = len(data.private[1])
    ledger = Ledger(path, cap=GUARANTEE)
    found = minimize(
        data.private_losses,
        BOUNDS,
        num_records=n,
        guarantee=GUARANTEE,
        loss_range=LOSS_RANGE,
        transform="log",
        ledger=ledger,
        progress=progress,
    )
    # Also private, with the same budget: one choice among 200 points.
    choice = PrivateBO(
        bounds=BOUNDS,
        num_records=n,
        guarantee=GUARANTEE.to_approx(DELTA),
        loss_range=LOSS_RANGE,
        transform="log",
        max_evaluations=200,
        scoring="evaluated",
    )
    # Not private: it returns the best of as many exact validation losses.
    random = RandomSearch(BOUNDS, n, 20, batch_size=10, transform="log")
    results = {
        RANDOM: random.run(data.private_losses, progress=progress),
        CHOICE: choice.run(data.private_losses, progress=progress),
        FOUND: found,
    }
    return results, ledger


def main(picture: Path) -> None:
    data = Digits()
    FOLDER.mkdir(exist_ok=True)
    # These images are public in truth. A ledger of private records is never deleted:
    # it says what was spent.
    LEDGER.unlink(missing_ok=True)
    results, ledger = searches(data, path=LEDGER)

    # The exact validation loss of a published point would be another release, which
    # nobody has paid for. So all of them are evaluated on public images.
    print(
        f"\nTuned on {len(data.private[1])} private images, evaluated on "
        f"{len(data.test[1])} public ones:"
    )
    print(f"\n{'':38}{'trained':>8}{'log loss':>10}{'errors':>9}")
    rows = {name: (found.x, found.num_evaluations) for name, found in results.items()}
    for name, (x, trained) in {"no tuning": (DEFAULTS, 1), **rows}.items():
        loss = float(data.test_loss(x.unsqueeze(0)))
        print(f"{name:38}{trained:>8}{loss:>10.3f}{data.test_errors(x):>9.1%}")
    found = results[FOUND]
    epsilon = found.certificate.epsilons[DELTA]
    print(f"\nThe cost is epsilon = {epsilon:.3g} at delta = 1e-5. The certificate:")
    print(f"\n{found.certificate}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="tight")
    plot_convergence(results[RANDOM], data.test_loss, label=RANDOM, ax=left)
    plot_convergence(found, data.test_loss, initial_x=DEFAULTS, label=FOUND, ax=left)
    chosen = float(data.test_loss(results[CHOICE].x.unsqueeze(0)))
    left.axhline(chosen, color="tab:green", ls="--", label=CHOICE)
    left.axhline(
        float(data.test_loss(DEFAULTS.unsqueeze(0))),
        color="0.5",
        ls=":",
        label="no tuning",
    )
    left.legend(fontsize=8)
    left.set(title="What was found", ylabel="log loss on public images")
    plot_ledger(ledger, ax=right).set_title("What it cost")
    figure.savefig(picture, dpi=150)

    certificate = found.certificate.with_declaration(DECLARATION)
    CERTIFICATE.write_text(certificate.to_json(), encoding="utf-8")
    report = write_page(certificate.to_html(ledger), FOLDER / "report.html")
    print(f"\nSaved a plot of convergence and budget to {picture}, and to {FOLDER} the")
    print(f"ledger, the certificate and its report. `make report` opens {report}.")
    print("This checks the certificate:")
    print(f"botorch-dp certificate verify {CERTIFICATE} --ledger {LEDGER}")


if __name__ == "__main__":
    mpl.use("Agg")
    threadpool_limits(1)  # the matrices are small: more threads would be slower
    main(Path(sys.argv[1] if sys.argv[1:] else "build/demo.png"))
