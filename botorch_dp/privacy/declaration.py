"""Declarations: what the people responsible for a data set say about it."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from botorch_dp._validation import check_count, check_instance

NOT_STATED = "not stated"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a certificate cannot know, and the owner of the data can say.

    Nothing here is checked: a certificate repeats it, and says "not stated" for the
    rest. A signature binds it.

    Args:
        data_set: The name of the data set.
        purpose: What the releases are for.
        owner: Who is responsible for the data.
        contact: Where to ask.
        access_control: Who can reach the exact data, and how that is enforced.
        data_minimization: What is collected and kept, and for how long.
        other_releases: Other releases of the same data, private or not.
        records_per_person: The largest number of records of one person.

    Example:
        >>> Declaration(data_set="visits of 2025", owner="Ward 3").owner
        'Ward 3'
    """

    data_set: str | None = None
    purpose: str | None = None
    owner: str | None = None
    contact: str | None = None
    access_control: str | None = None
    data_minimization: str | None = None
    other_releases: str | None = None
    records_per_person: int | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "records_per_person":
                if value is not None:
                    check_count(item.name, value)
            else:
                check_instance(item.name, value, (str, type(None)), expected="a text")

    def rows(self) -> list[tuple[str, str]]:
        """Return pairs of a label and a text, "not stated" where nothing is."""
        return [
            (name.replace("_", " "), NOT_STATED if value is None else str(value))
            for name, value in asdict(self).items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration as plain values, for JSON."""
        return asdict(self)
