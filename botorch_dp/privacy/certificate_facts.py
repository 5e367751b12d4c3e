"""What follows from the charges of a ledger: the numbers of a certificate.

A certificate is made from these facts, and checking it makes them again.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botorch_dp.exceptions import UnsupportedConversionError
from botorch_dp.privacy.accountant import PrivacyAccountant, Spending
from botorch_dp.privacy.entries import LedgerEntry
from botorch_dp.privacy.events import AssumedEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.history import total_cost
from botorch_dp.privacy.ledger_book import LedgerView
from botorch_dp.privacy.ledger_summary import accountant_of

# The parameters with the public number of units, of which one is protected; the first
# that is stated counts. There are at most as many persons as records.
_NUMBERS = {
    "record": ("num_records",),
    "person": ("num_persons", "num_records"),
    "user": ("num_users",),
    "agent": ("num_agents",),
}
_NOT_STATED = "an assumption that was not stated"
#: The orders at which a certificate states the Renyi curve.
RENYI_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class LedgerHead:
    """A position in a ledger's chain of digests.

    Attributes:
        ledger: A name that belongs to the ledger; see :func:`name_of`.
        num_rows: The number of rows up to here.
        digest: The digest of the header and of all these rows.
    """

    ledger: str
    num_rows: int
    digest: str


@dataclass(frozen=True)
class Facts:
    """What follows from the charges of a ledger up to some row.

    The attributes are those of :class:`~botorch_dp.privacy.certificate.Certificate`
    with the same names.
    """

    unit: str
    adjacency: str
    guarantee: Guarantee | None
    pure_epsilon: float | None
    rho: float | None
    renyi: dict[float, float]
    guess: float
    epsilons: dict[float, float]
    accountant: str
    noise: tuple[str, ...]
    num_releases: int
    conditions: tuple[str, ...]
    cap: Guarantee | None
    counted: Spending | None
    has_partitions: bool
    partition: str
    head: LedgerHead

    @classmethod
    def of(cls, view: LedgerView, deltas: Iterable[float]) -> "Facts":
        """Return the facts of a ledger that has at least one charge.

        Args:
            view: The ledger up to some row.
            deltas: The deltas at which to state epsilon.
        """
        entries = view.entries
        accountant = accountant_of(entries)
        spent = {delta: accountant.spent(delta) for delta in deltas}
        groups = accountant.groups()
        return cls(
            unit=entries[0].unit,
            adjacency=entries[0].adjacency,
            guarantee=accountant.to_gdp(),
            pure_epsilon=total_cost(groups, "pure_epsilon"),
            rho=_finite(total_cost(groups, "zcdp_rho")),
            renyi=_renyi(accountant),
            guess=(1 + accountant.get_delta(0.0)) / 2,
            epsilons={delta: spending.amount for delta, spending in spent.items()},
            accountant=" / ".join(sorted({one.method for one in spent.values()})),
            noise=tuple(sorted({entry.noise for entry in entries})),
            num_releases=sum(entry.count for entry in entries),
            conditions=(
                *conditions_of(entries),
                *map(_not_worst_case, view.conditions),
            ),
            cap=view.header.cap,
            counted=view.counted,
            has_partitions=view.has_partitions,
            partition=view.partition,
            head=LedgerHead(name_of(view.header.id), *view.head),
        )


def name_of(ledger_id: str) -> str:
    """Return the name under which certificates know a ledger.

    It is not the id itself: the digests of a ledger's rows start from the id and cover
    the time of every charge, which nobody can guess from a digest as long as the id is
    not published.
    """
    return hashlib.sha256(f"botorch-dp ledger {ledger_id}".encode()).hexdigest()[:32]


def largest_delta(unit: str, parameters: Mapping[str, Any]) -> tuple[float, Any]:
    """Return the bound below which a delta means something, and the number of units.

    A mechanism that publishes a random unit has delta = 1/number. A larger delta makes
    epsilon small and means nothing. The number is None if it is not stated.

    Args:
        unit: Who is protected.
        parameters: The parameters of a certificate.
    """
    stated = (parameters.get(name) for name in _NUMBERS[unit])
    number = next((number for number in stated if number is not None), None)
    if isinstance(number, int | float) and not isinstance(number, bool) and number > 1:
        return 1 / number, number
    return 1.0, None


def conditions_of(entries: Sequence[LedgerEntry]) -> tuple[str, ...]:
    """Return in words what the releases that are not worst case assume."""
    found = {text for entry in entries if (text := _condition(entry))}
    return tuple(map(_not_worst_case, sorted(found)))


def _condition(entry: LedgerEntry) -> str | None:
    """Return the assumption of a charge, in words; None in the worst case."""
    if entry.condition is not None:
        return entry.condition
    if isinstance(entry.event, AssumedEvent):
        return _NOT_STATED
    return None


def _not_worst_case(condition: str) -> str:
    if condition == _NOT_STATED:
        return f"NOT worst case: some releases hold under {_NOT_STATED}"
    return f"NOT worst case: some releases hold assuming {condition}"


def _renyi(accountant: PrivacyAccountant) -> dict[float, float]:
    """Return the Renyi curve; nothing if a release can fail with its own delta."""
    try:
        return {one.order: one.epsilon for one in accountant.to_rdp(RENYI_ORDERS)}
    except UnsupportedConversionError:
        return {}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
