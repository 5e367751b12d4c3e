"""Reading the rows of a ledger: charges, plans made before them, and budgets.

Most rows of a long ledger differ in their times only. So a row is cut into its time,
its event and its other fields, and texts that occur again are not parsed again.
"""

import json
import re
from functools import lru_cache
from typing import Any, TypeAlias

from botorch_dp.privacy.entries import (
    LedgerBudget,
    LedgerEntry,
    LedgerPlan,
    check_releases,
)
from botorch_dp.privacy.events import PrivacyEvent, PureEvent, check_event
from botorch_dp.privacy.guarantees import Guarantee

Item: TypeAlias = LedgerEntry | LedgerPlan | LedgerBudget

# A charge as ``LedgerEntry.to_row`` writes it. The text of an event without braces
# inside ends at the first brace, and that of a time without escapes at the first quote.
_CHARGE = re.compile(
    r'\{"time": "([^"\\\x00-\x1f]*)", "event": (\{[^{}]*\}), ("count": .*)', re.DOTALL
)
_DECODER = json.JSONDecoder()
# An event that can be stated for every adjacency.
_ANY_EVENT = PureEvent(1.0)


def read_row(row: str, *, number: int) -> Item:
    """Return the charge, the plan or the budget in a row.

    Args:
        row: A line of JSON.
        number: The number that the row gets if it is a charge.
    """
    parts = _CHARGE.fullmatch(row)
    if parts is None:
        return _read_any(row, number)
    time, event_text, other_text = parts.groups()
    event, other = _read_event(event_text), _read_other_fields(other_text)
    check_event(event, other.adjacency)
    return other.with_checked(number=number, time=time, event=event)


def _read_any(row: str, number: int) -> Item:
    """Return what is in a row that has any form."""
    state = json.loads(row)
    if "cap" in state:
        return LedgerBudget(**{**state, "cap": Guarantee.from_dict(state["cap"])})
    if "releases" in state:
        releases = tuple(
            (PrivacyEvent.from_dict(event), check_releases("count", count))
            for event, count in state["releases"]
        )
        return LedgerPlan(**{**state, "releases": releases})
    event = PrivacyEvent.from_dict(state["event"])
    return LedgerEntry(number=number, **{**state, "event": event})


@lru_cache(maxsize=4096)
def _read_event(text: str) -> PrivacyEvent:
    return PrivacyEvent.from_dict(_parse(text))


@lru_cache(maxsize=4096)
def _read_other_fields(text: str) -> LedgerEntry:
    """Return a charge with these fields, which lack its number, time and event."""
    state = _parse("{" + text)
    return LedgerEntry(number=1, time="", event=_ANY_EVENT, **state)


def _parse(text: str) -> Any:
    """Return what ``json.loads`` returns, in half the time for a short text."""
    state, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"{text[end:]!r} after the end of a row")
    return state
