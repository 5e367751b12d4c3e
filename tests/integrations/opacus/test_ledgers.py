"""The files of the two ledgers."""

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.ledgers import ledger_paths


def test_files(tmp_path):
    path = tmp_path / "budget"
    name = str(path)
    assert ledger_paths(None, "shared") == (None, None)
    assert ledger_paths(path, "shared") == (name, name)
    assert ledger_paths(path, "disjoint") == (f"{name}.training", f"{name}.tuning")


@pytest.mark.parametrize(
    ("file", "records"),
    [
        ("budget", "disjoint"),
        ("budget.training", "shared"),
        ("budget.tuning", "shared"),
    ],
)
def test_files_of_the_other_kind(file, records, tmp_path):
    (tmp_path / file).touch()
    with pytest.raises(InvalidArgumentError, match="path must be new"):
        ledger_paths(tmp_path / "budget", records)
