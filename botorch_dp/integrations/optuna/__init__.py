"""Optuna studies that see released scores only (extra ``optuna``).

A study stores every score that it is told, so scores of private records have to be
released before. :class:`PrivateObjective` does that, and :class:`ReleasedScoresOnly`
keeps everything else out of the storage.
"""

from typing import TYPE_CHECKING

from botorch_dp._imports import import_extra, lazy_imports

import_extra("optuna", extra="optuna", purpose="PrivateObjective")

if TYPE_CHECKING:
    from botorch_dp.integrations.optuna.guard import ReleasedScoresOnly
    from botorch_dp.integrations.optuna.objective import PrivateObjective

__all__ = ["PrivateObjective", "ReleasedScoresOnly"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
