"""The header and the rows of a ledger: charges, and plans made before them."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from botorch_dp._validation import check_choice, check_count, check_instance
from botorch_dp.exceptions import InvalidArgumentError, LedgerError
from botorch_dp.privacy.events import PrivacyEvent, check_event
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.noise import SecureNoise, SeededNoise, SystemNoise

Releases: TypeAlias = Sequence[tuple[PrivacyEvent, int]]

UNITS = ("record", "person", "user", "agent")
NOISE_NAMES = (SeededNoise.name, SystemNoise.name, SecureNoise.name)
# Beyond this number a float no longer counts every release.
_MOST_RELEASES = 2**53
# Squares of mu that should use up a plan exactly miss it by rounding.
_ROUNDING = 1e-9


class LedgerHeader(NamedTuple):
    """The properties of a ledger that never change.

    Attributes:
        id: A random name that identifies the ledger.
        cap: The budget that must not be exceeded, if there is one.
        filter: The filter that was chosen for the cap, if one was.
    """

    id: str
    cap: Guarantee | None
    filter: str | None

    def to_row(self) -> str:
        """Return the header as a line of JSON."""
        cap = None if self.cap is None else self.cap.to_dict()
        return json.dumps({"ledger": 2, **self._asdict(), "cap": cap})

    @classmethod
    def from_row(cls, row: str) -> "LedgerHeader":
        """Return the header that ``to_row`` wrote."""
        state = json.loads(row)
        cap, filter = state["cap"], state["filter"]
        cap = None if cap is None else Guarantee.from_dict(cap)
        return cls(str(state["id"]), cap, filter)

    def refuse_other(
        self, cap: Guarantee | None, filter: str | None, *, path: str | None
    ) -> None:
        """Raise if a ledger is opened with another cap or filter than its own."""
        if cap is not None and cap != self.cap:
            raise LedgerError(
                f"The ledger {path} has the cap {self.cap!r}, which is final; got "
                f"cap={cap!r}. Open it without cap, or give another path."
            )
        if filter is not None and filter != self.filter:
            raise LedgerError(
                f"The ledger {path} was created with filter={self.filter!r}, which is "
                f"final; got {filter!r}. Open it without filter."
            )


@dataclass(frozen=True)
class LedgerEntry:
    """One charge.

    Attributes:
        number: The position among the charges, starting at 1.
        time: The time of the charge (UTC, ISO 8601).
        event: The cost of one release.
        count: The number of releases.
        mechanism: The name of the mechanism.
        adjacency: The neighbouring data sets for which the cost is stated.
        noise: The name of the noise source.
        unit: Who is protected: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.
        run: The name of the run that the charge belongs to; empty if there is none.
        condition: The assumption, in words, under which the cost is valid; None if it
            is valid in the worst case.
        partition: The partition of the data set that the charge concerns; empty if it
            concerns all of it.
        budget: The budget under which the charge counts as well; empty if there is
            none.
    """

    number: int
    time: str
    event: PrivacyEvent
    count: int
    mechanism: str
    adjacency: str
    noise: str
    unit: str = "record"
    run: str = ""
    condition: str | None = None
    partition: str = ""
    budget: str = ""

    def __post_init__(self) -> None:
        check_event(self.event, self.adjacency)
        _check_recordable(self.event)
        object.__setattr__(self, "count", check_releases("count", self.count))
        check_choice("noise", self.noise, NOISE_NAMES)
        check_choice("unit", self.unit, UNITS)
        for name in ("time", "mechanism", "run", "partition", "budget"):
            check_instance(name, getattr(self, name), str, expected="a string")
        check_instance("condition", self.condition, (str, type(None)))

    def with_checked(self, **fields: Any) -> "LedgerEntry":
        """Return a copy with other values that are known to be valid."""
        entry = object.__new__(LedgerEntry)
        object.__setattr__(entry, "__dict__", {**vars(self), **fields})
        return entry

    def to_row(self) -> str:
        """Return the charge as a line of JSON, without its number."""
        state = {**vars(self), "event": self.event.to_dict()}
        del state["number"]
        for name in ("partition", "budget"):  # rows without them are as in 0.1
            if not state[name]:
                del state[name]
        return _dump(state)


@dataclass(frozen=True)
class LedgerBudget:
    """A named budget inside a ledger, with a cap of its own.

    Attributes:
        time: The time when it was declared (UTC, ISO 8601).
        name: The name.
        cap: What the charges under this name must not exceed together.
        filter: The name of the filter that counts them.
    """

    time: str
    name: str
    cap: Guarantee
    filter: str

    def to_row(self) -> str:
        """Return the budget as a line of JSON."""
        return _dump({**vars(self), "cap": self.cap.to_dict()})


@dataclass(frozen=True)
class LedgerPlan:
    """Releases that were planned before anything was charged.

    Attributes:
        time: The time when it was made (UTC, ISO 8601).
        releases: The cost of each release, and the number of releases.
        adjacency: The neighbouring data sets for which the costs are stated.
        unit: Who is protected.
        run: The name of the run that made the plan.
        filter: The name of the filter that counts later charges.
        committed: Whether only exact accounting of the whole plan shows that it fits
            under the cap. The ledger then accepts this plan only.
    """

    time: str
    releases: tuple[tuple[PrivacyEvent, int], ...]
    adjacency: str
    unit: str
    run: str
    filter: str
    committed: bool

    def to_row(self) -> str:
        """Return the plan as a line of JSON."""
        releases = [[event.to_dict(), count] for event, count in self.releases]
        return _dump({**asdict(self), "releases": releases})


def releases_of(
    entries: Iterable[LedgerEntry],
) -> tuple[tuple[PrivacyEvent, int], ...]:
    """Return each event of these charges once, with its number of releases."""
    counts: Counter[PrivacyEvent] = Counter()
    for entry in entries:
        counts[entry.event] += entry.count
    return tuple(counts.items())


def check_releases(name: str, count: int) -> int:
    """Return a number of releases that can be counted."""
    count = check_count(name, count)
    if count > _MOST_RELEASES:
        raise InvalidArgumentError(
            f"{name} must be at most 2^53, got a number of {len(str(count))} digits."
        )
    return count


def check_plan(
    releases: Iterable[tuple[PrivacyEvent, int]], adjacency: str
) -> tuple[tuple[PrivacyEvent, int], ...]:
    """Return a plan if it can be stated for this adjacency and recorded."""
    checked = []
    for event, count in releases:
        check_event(event, adjacency)
        _check_recordable(event)
        checked.append((event, check_releases("count", count)))
    return tuple(checked)


class PlannedReleases:
    """What is left of a plan that was accounted for as a whole.

    Gaussian releases are covered if the sum of their squared mu is at most that of the
    plan: together they are one Gaussian release, however they are divided.

    Args:
        releases: The plan.
    """

    def __init__(self, releases: Releases) -> None:
        self._gaussian = math.fsum(n * e.gdp_mu**2 for e, n in releases if e.gdp_mu)
        self._slack = self._gaussian * _ROUNDING
        self._others: Counter[PrivacyEvent] = Counter()
        for event, count in releases:
            if event.gdp_mu is None:
                self._others[self._planned(event)] += count

    def covers(self, releases: Releases) -> bool:
        """Return whether the rest of the plan contains these releases."""
        needed: Counter[PrivacyEvent] = Counter()
        for event, count in releases:
            if event.gdp_mu is None:
                # Two events may be like one of the plan, and not like each other.
                needed[self._planned(event)] += count
        gaussian = math.fsum(n * e.gdp_mu**2 for e, n in releases if e.gdp_mu)
        return gaussian <= self._gaussian + self._slack and all(
            self._others[event] >= count for event, count in needed.items()
        )

    def take(self, event: PrivacyEvent, count: int) -> None:
        """Remove releases from the rest of the plan."""
        if event.gdp_mu is None:
            self._others[self._planned(event)] -= count
        else:
            self._gaussian -= count * event.gdp_mu**2

    def _planned(self, event: PrivacyEvent) -> PrivacyEvent:
        """Return the event of the plan that costs the same, or the event itself."""
        if event in self._others:
            return event
        alike = (other for other in self._others if costs_the_same(other, event))
        return next(alike, event)


def costs_the_same(first: PrivacyEvent, second: PrivacyEvent) -> bool:
    """Return whether two events are equal up to rounding on another machine."""
    ours, theirs = first.to_dict(), second.to_dict()
    return ours.keys() == theirs.keys() and all(
        math.isclose(value, theirs[key], rel_tol=_ROUNDING)
        if isinstance(value, float)
        else value == theirs[key]
        for key, value in ours.items()
    )


@lru_cache(maxsize=4096)
def _check_recordable(event: PrivacyEvent) -> None:
    """Raise unless this and any other process can read the event again."""
    try:
        again = PrivacyEvent.from_dict(json.loads(_dump(event.to_dict())))
    except (InvalidArgumentError, TypeError, ValueError):
        again = None
    if again != event or type(again) is not type(event):
        raise InvalidArgumentError(
            f"event must be one of the library's own events, got {event!r}, which "
            "could not be read back from a ledger."
        )


# NaN is not JSON. Surrogates, which cannot be stored, become escapes.
_dump = json.JSONEncoder(allow_nan=False, ensure_ascii=True).encode
