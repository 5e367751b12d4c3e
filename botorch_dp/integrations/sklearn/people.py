r"""The persons whom private records belong to, and one loss for each of them.

The clipped losses :math:`l_1, \dots, l_m` of a person's records are in
:math:`[low, high]`. The loss of the person is their mean, or with
``max_records_per_person``, a public number k,

.. math::
    low + \min\left(high - low, \frac{1}{k} \sum_{j=1}^m (l_j - low)\right).

Both are in :math:`[low, high]` for any number of records, and depend on the person's
own records alone. Replacing one of n persons therefore changes one of n losses by at
most :math:`high - low`, and their mean by at most :math:`(high - low) / n`.

The number n of persons is public. How many records a person has affects the loss of
that person, and nothing else that is released or stored. However, the last bits of a
prediction may depend on how many records are scored at a time, so the guarantee treats
the total number of records as public.

Two names that denote one person must not be told apart, or the person would count
twice. Names are therefore compared by their content, each read by itself: ``7``,
``7.0`` and ``"7"`` are one name. Records without a name count as those of one person:
to combine persons is safe.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import _num_samples

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.cells import cells_of
from botorch_dp.integrations.sklearn.plain import contained, plain, whole_of, word_of
from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.privacy import Ledger

_NUMBERS_ARE_PUBLIC = (
    "the number of persons and the total number of records are public: a person is "
    "replaced by another with as many records"
)


@dataclass(frozen=True)
class People:
    """The persons of private records.

    Attributes:
        persons: The number of each record's person, from 0 to ``num_persons - 1``;
            private.
        num_persons: The number of persons, which is public.
        max_records: The bound k on the sum of a person's losses; None for their mean.
    """

    persons: npt.NDArray[np.intp] = field(repr=False)
    num_persons: int
    max_records: int | None = None

    def losses(
        self, losses: npt.NDArray[np.float64], loss_range: tuple[float, float]
    ) -> npt.NDArray[np.float64]:
        """Return one loss for each person.

        Args:
            losses: The losses of the records, in the range.
            loss_range: The range ``(low, high)``.
        """
        low, high = loss_range
        # bincount adds up each person's losses in their own order, so that even the
        # last bits do not depend on other persons.
        sums = np.bincount(self.persons, losses - low, minlength=self.num_persons)
        counts = np.bincount(self.persons, minlength=self.num_persons)
        divisors = counts if self.max_records is None else self.max_records
        return np.clip(low + sums / divisors, low, high)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of each record, equal for a person's records and 1 in sum."""
        counts = np.bincount(self.persons, minlength=self.num_persons)
        return 1.0 / counts[self.persons]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the certificate says about the persons."""
        how = "the mean over its records"
        if self.max_records is not None:
            how = (
                f"the sum over its records divided by {self.max_records}, clipped to "
                "loss_range"
            )
        return (f"a person has one loss, {how}", _NUMBERS_ARE_PUBLIC)


def people_of(groups: Any, X_val: Any, max_records: int | None) -> People | None:
    """Return the persons of the private records, or None without ``groups``.

    Only the type and the length of ``groups`` may raise.

    Args:
        groups: The name of the person of each private record, or None.
        X_val: The inputs of the private records.
        max_records: The argument ``max_records_per_person``.
    """
    if max_records is not None:
        check_count("max_records_per_person", max_records)
    if groups is None:
        if max_records is not None:
            raise InvalidArgumentError(
                f"max_records_per_person needs groups, got {max_records!r} without: "
                "fit(..., groups=...) with the name of the person of every private "
                "record."
            )
        return None
    num_records, shape = _num_samples(X_val), getattr(groups, "shape", None)
    is_column = hasattr(groups, "__len__") and not isinstance(groups, str | bytes)
    if not is_column or (shape is not None and len(shape) != 1):
        found = type(groups).__name__ if shape is None else f"shape {tuple(shape)}"
        raise InvalidArgumentError(
            "groups must be a one-dimensional array or list with the name of the "
            f"person of every private record, such as a column of a table, got {found}."
        )
    if isinstance(groups, Mapping | Set):
        raise InvalidArgumentError(
            "groups must be an array or list with the name of the person of every "
            f"private record, in the order of X_val, got a {type(groups).__name__}, "
            "whose elements are in no such order. Write groups=[names[key] for key in "
            "keys], with the keys of the records in the order of X_val."
        )
    if len(groups) != num_records:
        raise InvalidArgumentError(
            "groups must be as long as X_val, with the name of the person of every "
            f"private record: {num_records} names, got {len(groups)}."
        )
    numbers: dict[Any, int] = {}
    with quiet():
        persons = [numbers.setdefault(name, len(numbers)) for name in _names(groups)]
    return People(np.array(persons, dtype=np.intp), len(numbers), max_records)


def public_facts(people: People | None, *, num_records: int) -> dict[str, Any]:
    """Return what a checkpoint tells of the private records.

    It does not tell the number of records of persons, nor who they are.
    """
    if people is None:
        return {"num_records": num_records}
    return {"unit": "person", "num_persons": people.num_persons}


def counted(people: People | None, *, num_records: int) -> str:
    """Return in words how many private records there are, which is public."""
    if people is None:
        return f"{num_records:,} records"
    return f"{people.num_persons:,} persons with {num_records:,} records"


def check_same_count(method: str, of_fit: str | None, now: str) -> None:
    """Raise if a continuation is visibly not about the private records of the fit.

    Args:
        method: The name of the method that continues.
        of_fit: What the fit :func:`counted`; None if that is not known.
        now: What there is now.
    """
    if of_fit not in (None, now):
        raise InvalidArgumentError(
            f"{method} needs the private records of fit, {of_fit}, got {now}. Its "
            "ledger and certificate count what these records have spent: for others, "
            "start a new search with a ledger of its own."
        )


def check_same_unit(method: str, unit: str, groups: Any) -> None:
    """Raise if a continuation protects others than the fit did.

    Args:
        method: The name of the method that continues.
        unit: Who the fit protected.
        groups: The argument ``groups`` of the method.
    """
    if unit == "person" and groups is None:
        raise InvalidArgumentError(
            f"{method} needs groups=, the name of the person of every private record: "
            "fit was given groups, so this search protects persons, not records."
        )
    if unit == "record" and groups is not None:
        raise InvalidArgumentError(
            f"{method} must not be given groups: fit was not, so this search protects "
            "records, not persons. Start a new search with fit(..., groups=...) and a "
            "ledger of its own."
        )


def check_unit(ledger: Ledger, unit: str) -> None:
    """Raise if a ledger has charges that protect others than this search."""
    if ledger.unit not in (None, unit):
        now = "persons (groups= is given)" if unit == "person" else "records"
        raise InvalidArgumentError(
            f"ledger has charges that protect every {ledger.unit}, but this search "
            f"protects {now}: their costs do not add up. Give groups= to all searches "
            "on these records or to none, or use another ledger."
        )


def _names(groups: Any) -> list[Any]:
    """Return names that are equal if and only if they denote the same person."""
    if isinstance(groups, np.ndarray) and groups.dtype.kind in "iu":
        return groups.tolist()
    return [_name(cell) for cell in cells_of(groups)]


def _name(cell: Any) -> int | str | None:
    """Return the name in a cell, None if there is none."""
    whole = whole_of(cell)  # with all digits
    if whole is not None:
        return whole
    content = plain(cell)
    with contained:
        return None if content is None else word_of(content).strip() or None
    return None
