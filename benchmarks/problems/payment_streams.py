r"""Taxi fares and credit card fraud as streams: Example 5.3 of [LDPBO2025]_.

Both read data sets that are not part of this library, see
:func:`benchmarks.problems.data.load_dataset`. Every replication takes the same rows in
another random order: its first ``num_steps`` rows are the users of the stream, the rest
is its test set. Features are scaled by public constants, not by statistics of the
private data.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
"""

import math
import os
from abc import abstractmethod
from typing import TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from benchmarks.problems.data import load_dataset
from botorch_dp._validation import check_positive, check_probability
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems._stream_losses import (
    MALLOWS_CONSTANT,
    huber_gradients,
    huber_losses,
    logistic_gradients,
    logistic_losses,
    regression_records,
    signed_records,
)
from botorch_dp.problems.streams import (
    Record,
    StreamProblem,
    check_seed,
    numbered_generator,
)

# Kilometres in a degree of latitude, and of longitude at New York's 40.75 degrees.
_KM_NORTH = 111.2
_KM_EAST = _KM_NORTH * math.cos(math.radians(40.75))
# Dollars: the first charge of a New York taxi, 2.50, and the state's surcharge.
_BASE_FARE = 3.0
_FARE_UNIT = 5.0
_DISTANCE_UNIT = 5.0
_NUM_COMPONENTS = 5
# The number of the generator that chooses which frauds are kept.
_THINNING = 2**64 - 1


class PaymentSettings(TypedDict, total=False):
    """Keyword arguments that both streams pass on to :class:`PaymentStream`."""

    mallows: bool
    seed: int
    num_replications: int
    num_steps: int
    dtype: torch.dtype
    device: torch.device | str | None


class PaymentStream(StreamProblem):
    """The base class of both streams: rows in random orders, and a test set.

    Args:
        features: An ``N x p`` tensor with a row for each payment.
        targets: An ``N`` tensor of responses.
        c: A bound on the derivative of a loss by the linear predictor.
        mallows: Whether losses are weighted by min(1, 2 / ||x||^2).
        seed: The seed of the orders of the rows.
        num_replications: The number of replications R.
        num_steps: The number of rows of the stream; the others are for testing.
        dtype: The dtype of points and losses.
        device: The device of points and losses; torch's default if None.

    Attributes:
        num_test: The number of rows of the test set.
    """

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        *,
        c: float = 1.0,
        mallows: bool = True,
        seed: int = 0,
        num_replications: int = 1,
        num_steps: int = 20000,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            features.shape[-1],
            num_replications=num_replications,
            num_steps=num_steps,
            dtype=dtype,
            device=device,
        )
        self.num_test = len(features) - num_steps
        if self.num_test < 1:
            raise InvalidArgumentError(
                f"num_steps must be below the number of rows, {len(features)}, so that "
                f"some are left for testing, got {num_steps}."
            )
        self.c = check_positive("c", c)
        self.mallows = bool(mallows)
        if self.mallows:
            self.gradient_bound = self.c * math.sqrt(MALLOWS_CONSTANT)
        orders = [
            numbered_generator(check_seed(seed), replication).permutation(len(features))
            for replication in range(self.num_replications)
        ]
        order = torch.from_numpy(np.stack(orders)).to(self.device)  # R x N
        self._order, self._test_rows = order.split([num_steps, self.num_test], dim=-1)
        self._features = features.to(self.initial_x)
        self._targets = targets.to(self.initial_x)

    @abstractmethod
    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return errors on the test set by their names.

        Args:
            x: An ``R x p`` tensor of parameters.

        Returns:
            An ``R`` tensor for each name: private, for measuring only.
        """

    def _chunk(self, number: int) -> Record:
        start = number * self.chunk_size
        rows = self._order[:, start : start + self.chunk_size].T  # C x R
        return regression_records(
            self._features[rows],
            self._targets[rows],
            mallows=self.mallows,
            like=self.initial_x,
        )

    def _test_predictors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return linear predictors and responses of the test set, ``R x num_test``."""
        predictors = self._check_point(x) @ self._features.T  # R x N
        return predictors.gather(-1, self._test_rows), self._targets[self._test_rows]


class UberStream(PaymentStream):
    r"""Predict taxi fares by robust linear regression.

    The loss is that of :class:`~botorch_dp.problems.LinearStream`: the Huber loss with
    Mallows weights, whose gradients have a norm of at most :math:`c \sqrt 2`. The
    response is (fare - 3) / 5 in dollars: 3 is the base fare of a New York taxi (2.50
    and a surcharge of 0.50), so that the four parameters of the paper need no
    intercept. The features have values of about one:

    * the Manhattan distance / 5 km, a degree being 111.2 km north and 84.2 km east;
    * (hour of the day - 12) / 12;
    * (day of the week - 3) / 3, from -1 on Mondays to 1 on Sundays;
    * (passengers - 1) / 2.5, from 0 for one to 2 for six.

    On all 27,671 rows the minimizer is about (1.81, 0.05, -0.02, 0.07), with a mean
    absolute error of 2.52 dollars, the same as with an intercept. At the start, zero,
    the error is 8.38; that of the best constant is 5.40.

    Args:
        data_dir: The folder with the data; by default the value of the environment
            variable ``BOTORCH_DP_DATA``.
        intercept: Whether to add a fifth feature, which is one.
        c: The residual at which the Huber loss changes from quadratic to linear.
        **settings: ``mallows``, ``seed``, ``num_replications``, ``num_steps``,
            ``dtype`` and ``device`` of :class:`PaymentStream`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        intercept: bool = False,
        c: float = 1.0,
        **settings: Unpack[PaymentSettings],
    ) -> None:
        arrays = load_dataset("uber", data_dir)
        columns = {
            name: torch.from_numpy(array).double() for name, array in arrays.items()
        }
        north = columns["pickup_latitude"] - columns["dropoff_latitude"]
        east = columns["pickup_longitude"] - columns["dropoff_longitude"]
        distance = _KM_NORTH * north.abs() + _KM_EAST * east.abs()
        hours = (columns["pickup_unix"] / 3600).floor()
        days = (hours / 24).floor()
        features = [
            distance / _DISTANCE_UNIT,
            (hours - 24 * days - 12) / 12,
            # The first of January 1970 was a Thursday, day 3.
            ((days + 3) % 7 - 3) / 3,
            (columns["passenger_count"] - 1) / 2.5,
        ]
        if intercept:
            features.append(torch.ones_like(distance))
        super().__init__(
            torch.stack(features, dim=-1),
            (columns["fare_amount"] - _BASE_FARE) / _FARE_UNIT,
            c=c,
            **settings,
        )

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return errors on the test set, in dollars.

        Args:
            x: An ``R x p`` tensor of parameters.

        Returns:
            ``mean_absolute_error`` and ``mean_squared_error``, ``R`` tensors: private,
            for measuring only.
        """
        predicted, true = self._test_predictors(x)
        errors = _FARE_UNIT * (predicted - true)
        return {
            "mean_absolute_error": errors.abs().mean(dim=-1),
            "mean_squared_error": errors.square().mean(dim=-1),
        }

    def _losses(self, record: Record, X: Tensor) -> Tensor:
        return huber_losses(record, X, self.c)

    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        return huber_gradients(record, x, self.c)


class CreditCardStream(PaymentStream):
    r"""Detect credit card fraud by logistic regression.

    The loss is that of :class:`~botorch_dp.problems.LogisticStream`, whose gradients
    have a norm of at most :math:`\sqrt 2`; labels are 1 for frauds and -1 otherwise.
    The features are the first five principal components, unchanged.

    Accuracy says little here: frauds are 1.8 % of the data and 0.17 % of the original
    data, so the classifier that never predicts a fraud is 98.2 % or 99.8 % accurate.
    Its balanced accuracy is 0.5. :meth:`evaluate` also returns balanced accuracy and
    the area under the ROC curve. Over all rows and averaged over test sets, the
    minimizer of the expected loss has

    ========= =========== ======== ================= =======
    intercept fraud_share accuracy balanced accuracy ROC AUC
    ========= =========== ======== ================= =======
    yes       None        0.987    0.82              0.96
    yes       0.00173     0.998    0.70              0.97
    no        None        0.740    0.82              0.91
    no        0.00173     0.736    0.84              0.93
    ========= =========== ======== ================= =======

    The paper does not say whether it uses an intercept. Without one, the minimizer
    cannot reach its accuracies of 0.91 to 0.97.

    Args:
        data_dir: The folder with the data; by default the value of the environment
            variable ``BOTORCH_DP_DATA``.
        intercept: Whether to add a sixth feature, which is one. Without it, a payment
            with all components zero is a fraud with probability 1/2.
        fraud_share: The share of frauds to keep, drawn by the seed; 0.00173 is the
            share in the original data. None keeps all.
        **settings: ``mallows``, ``seed``, ``num_replications``, ``num_steps``,
            ``dtype`` and ``device`` of :class:`PaymentStream`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        intercept: bool = True,
        fraud_share: float | None = None,
        **settings: Unpack[PaymentSettings],
    ) -> None:
        arrays = load_dataset("creditcard", data_dir)
        features = torch.from_numpy(arrays["V"][:, :_NUM_COMPONENTS]).double()
        frauds = torch.from_numpy(arrays["Class"]) == 1
        if intercept:
            ones = features.new_ones(len(features), 1)
            features = torch.cat([features, ones], dim=-1)
        if fraud_share is not None:
            share = check_probability("fraud_share", fraud_share)
            kept = _thin(frauds, share, settings.get("seed", 0))
            features, frauds = features[kept], frauds[kept]
        super().__init__(features, 2 * frauds.double() - 1, c=1.0, **settings)

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return how well the parameters detect frauds in the test set.

        Args:
            x: An ``R x p`` tensor of parameters.

        Returns:
            ``accuracy`` and ``balanced_accuracy`` (the mean of the shares of frauds and
            of other payments that are right), where a positive linear predictor means
            a fraud, and ``roc_auc``, the area under the ROC curve; ``R`` tensors:
            private, for measuring only. The last two are NaN if the test set has only
            one class.
        """
        scores, labels = self._test_predictors(x)
        frauds = labels > 0
        right = ((scores > 0) == frauds).to(self.dtype)
        num_frauds = frauds.sum(dim=-1)
        others = self.num_test - num_frauds
        balanced = (
            (right * frauds).sum(dim=-1) / num_frauds
            + (right * ~frauds).sum(dim=-1) / others
        ) / 2
        # Wilcoxon's statistic from twice the ranks; ties have their mean rank.
        ordered = scores.sort(dim=-1).values
        twice_ranks = (
            torch.searchsorted(ordered, scores)
            + torch.searchsorted(ordered, scores, right=True)
            + 1
        )
        wins = (twice_ranks * frauds).sum(dim=-1) - num_frauds * (num_frauds + 1)
        return {
            "accuracy": right.mean(dim=-1),
            "balanced_accuracy": balanced,
            "roc_auc": (wins / (2 * num_frauds * others)).to(self.dtype),
        }

    def _chunk(self, number: int) -> Record:
        return signed_records(super()._chunk(number))

    def _losses(self, record: Record, X: Tensor) -> Tensor:
        return logistic_losses(record, X)

    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        return logistic_gradients(record, x)


def _thin(frauds: Tensor, share: float, seed: int) -> Tensor:
    """Return the rows that are left, in order, with the given share of frauds."""
    others, rows = (~frauds).nonzero().squeeze(-1), frauds.nonzero().squeeze(-1)
    num_kept = round(share / (1 - share) * len(others))
    if num_kept > len(rows):
        raise InvalidArgumentError(
            "fraud_share must be at most that of the data, "
            f"{len(rows) / len(frauds):.4f}, got {share}."
        )
    order = numbered_generator(check_seed(seed), _THINNING).permutation(len(rows))
    kept = rows[torch.from_numpy(order[:num_kept])]
    return torch.cat([others, kept]).sort().values
