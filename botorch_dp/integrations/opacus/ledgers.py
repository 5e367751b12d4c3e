"""The ledgers of training and tuning: their files, and one certificate for both."""

import os
from dataclasses import replace

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import Certificate

ADJACENCY = "zero_out"
RECORDS = {
    "disjoint": "training and validation records are disjoint: each record is in one "
    "of the two sets, so the larger of the two costs is the total cost",
    "shared": "training and validation records may overlap: the costs of training and "
    "tuning are added up",
}


def ledger_paths(
    path: str | os.PathLike[str] | None, records: str
) -> tuple[str | None, str | None]:
    """Return the files of the training and the tuning ledger; None for no files.

    Raises:
        InvalidArgumentError: If a budget with the other kind of records has files.
    """
    if path is None:
        return None, None
    name = os.fspath(path)
    shared, disjoint = (name, name), (f"{name}.training", f"{name}.tuning")
    own, other = (disjoint, shared) if records == "disjoint" else (shared, disjoint)
    found = next((file for file in other if os.path.isfile(file)), None)
    if found is not None:
        raise InvalidArgumentError(
            f"path must be new for records={records!r}, got {name!r}: the file "
            f"{found!r} belongs to a budget with the other kind of records, whose "
            "spending would not count."
        )
    return own


def larger(training: Certificate, tuning: Certificate) -> Certificate:
    """Return the certificate of records each of which is in one of two sets."""
    if tuning.adjacency != training.adjacency:
        raise InvalidArgumentError(
            f"tuning_ledger must have charges for adjacency={training.adjacency!r}, "
            f"got {tuning.adjacency!r}. Pass tuning_options to the optimizer."
        )
    sets = {"training": training, "tuning": tuning}
    return replace(
        Certificate.larger([training, tuning]),
        accountant="the larger of "
        + " and ".join(f"{name}: {c.accountant}" for name, c in sets.items()),
        parameters={
            **training.parameters,
            **{
                f"epsilon_of_{name}": [
                    f"{epsilon:.6g} at delta={delta:.3g}"
                    for delta, epsilon in c.epsilons.items()
                ]
                for name, c in sets.items()
            },
        },
    )
