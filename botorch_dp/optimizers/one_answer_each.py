"""What users have spent who answer once each: the costliest answer, and how many."""

from collections.abc import Mapping
from typing import Any

from botorch_dp._checks import check_count
from botorch_dp.privacy import Ledger, PrivacyEvent, SeededNoise, SystemNoise
from botorch_dp.privacy.events import check_event

_DELTA = 1e-5
Labels = dict[str, str]


class OneAnswerEach:
    """Takes the charges of a stream of users, in constant memory.

    Every charge is another user's. Users do not compose: what holds for all of them is
    what holds for the one whose answer cost most.

    Example:
        >>> from botorch_dp.privacy import GaussianEvent
        >>> spent = OneAnswerEach()
        >>> for multiplier in (3.0, 2.0, 4.0):
        ...     spent.charge(GaussianEvent(noise_multiplier=multiplier))
        >>> spent.num_users, spent.ledger().accountant().to_gdp()
        (3, GDP(mu=0.5))
    """

    def __init__(self) -> None:
        self.num_users = 0
        self._worst: tuple[float, PrivacyEvent, Labels] | None = None
        self._last: tuple[PrivacyEvent, Labels] | None = None
        self._seeded = False

    def charge(self, event: PrivacyEvent, *, count: int = 1, **labels: str) -> None:
        """Record an answer. ``count`` is the number of replications, not of users."""
        check_count("count", count)
        if self._last != (event, labels):  # what was just compared is no worse again
            self._compare(event, labels)
            self._last = (event, labels)
        self.num_users += 1

    def _compare(self, event: PrivacyEvent, labels: Labels) -> None:
        check_event(event, labels.get("adjacency", "replace_one"))
        cost = _ledger(event, labels).spent(_DELTA)
        if self._worst is None or cost > self._worst[0]:
            self._worst = (cost, event, labels)
        self._seeded |= labels.get("noise") == SeededNoise.name

    def ledger(self) -> Ledger:
        """Return the ledger of the user whose answer cost most."""
        if self._worst is None:
            return Ledger()
        _, event, labels = self._worst
        if self._seeded:  # some user's noise can be repeated: say so of all
            labels = {**labels, "noise": SeededNoise.name}
        return _ledger(event, labels)

    def merge(self, other: "OneAnswerEach") -> None:
        """Take in what the same users have spent by another account."""
        if other._worst is not None:
            self._compare(*other._worst[1:])
        self._seeded |= other._seeded
        self.num_users = max(self.num_users, other.num_users)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_state_dict`."""
        entries = self.ledger().entries
        worst = None
        if entries:
            labels = ("mechanism", "adjacency", "noise")
            worst = {
                "event": entries[0].event.to_dict(),
                "labels": {label: getattr(entries[0], label) for label in labels},
            }
        return {"num_users": self.num_users, "worst": worst}

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> "OneAnswerEach":
        """Return what :meth:`state_dict` described."""
        spent, worst = cls(), state_dict["worst"]
        if worst is not None:
            spent.charge(PrivacyEvent.from_dict(worst["event"]), **worst["labels"])
        spent.num_users = check_count("num_users", state_dict["num_users"], minimum=0)
        if (worst is None) != (spent.num_users == 0):
            raise ValueError(f"{spent.num_users} users, and a cost of {worst!r}")
        return spent


def _ledger(event: PrivacyEvent, labels: Labels) -> Ledger:
    ledger = Ledger()
    ledger.charge(
        event,
        mechanism=labels.get("mechanism", ""),
        adjacency=labels.get("adjacency", "replace_one"),
        noise=labels.get("noise", SystemNoise.name),
    )
    return ledger
