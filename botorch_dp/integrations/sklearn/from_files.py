"""Search with records from files."""

import os
from collections.abc import Collection, Mapping
from typing import Any, Self

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.continued import ContinuedSearch
from botorch_dp.integrations.sklearn.csv_files import MISSING, File, read_csv


class SearchOfFiles(ContinuedSearch):
    """The part of a search that reads its records from files."""

    @classmethod
    def from_csv(
        cls,
        train: File,
        private: File,
        *,
        target: str,
        person: str | None = None,
        schema: Mapping[str, Any] | None = None,
        drop: Collection[str] = (),
        missing: Collection[str] = MISSING,
        delimiter: str = ",",
        encoding: str = "utf-8",
        **settings: Any,
    ) -> Self:
        """Read two CSV files, search, and return the fitted search.

        This is :func:`~botorch_dp.integrations.sklearn.read_csv` and ``fit`` in one
        call. Use these two to continue the search or to pay for a score.

        Args:
            train: The training file, which is not protected.
            private: The private file.
            target: The column of targets.
            person: The column that names the person of each private record.
            schema: The types of some columns, or all.
            drop: The columns that are not inputs.
            missing: The words that mean that a value is missing.
            delimiter: The character between two fields.
            encoding: The encoding of both files.
            **settings: The arguments of the search: ``estimator``, ``space``,
                ``guarantee`` and others.
        """
        if _is_same_file(train, private):
            raise InvalidArgumentError(
                f"private must be another file than train, got {train!r} twice: models "
                "are not trained on private records, and training records are not "
                "protected. Split the records into two files."
            )
        data = read_csv(
            train,
            private,
            target=target,
            person=person,
            schema=schema,
            drop=drop,
            missing=missing,
            delimiter=delimiter,
            encoding=encoding,
        )
        search: Any = cls(**settings, schema=data.schema)
        return search.fit(**data.training, **data.private)


def _is_same_file(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return os.path.samefile(
            *(
                file.fileno() if hasattr(file, "fileno") else file
                for file in (one, other)
            )
        )
    except (OSError, TypeError):  # not on a disk, or not there
        return False
