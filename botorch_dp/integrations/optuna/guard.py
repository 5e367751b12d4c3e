"""A storage that refuses what could be a score without noise."""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from optuna.storages import BaseStorage, get_storage
from optuna.trial import FrozenTrial, TrialState

from botorch_dp.exceptions import UnreleasedScoreError

# What needs no check: it reads, or it writes parameters and what samplers keep.
_PASSED_ON = (
    "create_new_study",
    "delete_study",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
    "set_trial_param",
    "get_trial_id_from_study_id_trial_number",
    "get_trial_number_from_id",
    "get_trial_param",
    "get_trial",
    "get_all_trials",
    "get_n_trials",
    "get_best_trial",
    "remove_session",
    "check_trial_is_updatable",
)
# Samplers keep the values of constraints under keys that start like this.
_CONSTRAINTS = "constraints"
_METRIC_NAMES = "study:metric_names"


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: "ReleasedScoresOnly", *args: Any, **kwargs: Any) -> Any:
        return getattr(self._storage, name)(*args, **kwargs)

    return method


# A method that a new version of Optuna adds is either abstract, so that no guard can be
# made, or not passed on.
_Storage: Any = type(
    "_Storage", (BaseStorage,), {name: _passed_on(name) for name in _PASSED_ON}
)


class ReleasedScoresOnly(_Storage):
    """An Optuna storage that admits released scores only.

    It protects against mistakes: an objective that returns an exact score, a forgotten
    ``trial.report`` or ``set_user_attr``, constraints, or trials that are copied from
    another study. It refuses these with an :class:`UnreleasedScoreError`, which does
    not contain the value, and passes everything else on. It cannot know what a
    parameter was computed from.

    Scores of a :class:`PrivateObjective` are admitted, each for its own trial.

    Args:
        storage: The storage, as for ``optuna.create_study``: an object, a URL, or None
            for one in memory.
        public_attributes: The names of user attributes that may be stored, such as a
            version of your code, and of metrics. Attributes' values must not depend on
            private records.

    Example:
        >>> import optuna
        >>> study = optuna.create_study(storage=ReleasedScoresOnly(None))
        >>> study.optimize(lambda trial: 0.123, n_trials=1)
        Traceback (most recent call last):
        botorch_dp.exceptions.UnreleasedScoreError: ...
    """

    def __init__(
        self,
        storage: BaseStorage | str | None,
        *,
        public_attributes: Collection[str] = (),
    ) -> None:
        self._storage = get_storage(storage)
        self._public = frozenset(public_attributes)
        self._lock = threading.Lock()
        self._released: dict[int, float] = {}  # by the ids of trials

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"], state["_released"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _released={})

    def _admit(self, trial_id: int, released: float) -> None:
        """Accept a score that a mechanism released, for this trial, once."""
        with self._lock:
            self._released[trial_id] = released

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Store the end of a trial, if its value was released for it."""
        if values is not None:
            with self._lock:
                released = self._released.pop(trial_id, None)
            if released is None or list(values) != [released]:
                # Optuna reports an error cleanly only of a trial that has ended so.
                self._storage.set_trial_state_values(trial_id, TrialState.PRUNED)
                _refuse(
                    "A trial got a score that was not released for it, which was not "
                    "stored. Return what a PrivateObjective returns."
                )
        return self._storage.set_trial_state_values(trial_id, state, values)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Refuse: nobody has paid for intermediate scores."""
        del trial_id, step, intermediate_value
        _refuse(
            "An intermediate score was reported, which was not stored: it would be a "
            "release of its own. Do not prune trials on private records."
        )

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Store an attribute of a trial if its name is a public one."""
        self._check_attribute(key)
        self._storage.set_trial_user_attr(trial_id, key, value)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Store an attribute of a study if its name is a public one."""
        self._check_attribute(key)
        self._storage.set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Store what samplers keep, and names of metrics if they are public ones."""
        if key == _METRIC_NAMES and not self._public.issuperset(value):
            _refuse(
                "The names of metrics were not stored: a name may have a score in it. "
                "If they have none, name them in public_attributes."
            )
        self._storage.set_study_system_attr(study_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Store what samplers and pruners keep, except for constraints."""
        if key.startswith(_CONSTRAINTS):
            _refuse(
                "A trial got a constraint, which was not stored: it would be a release "
                "of its own."
            )
        self._storage.set_trial_system_attr(trial_id, key, value)

    def create_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None = None
    ) -> int:
        """Create a trial, if it does not bring scores with it."""
        if template_trial is not None:
            if template_trial.values is not None or template_trial.intermediate_values:
                _refuse(
                    "A trial with scores was added, which were not released here. Add "
                    "parameters alone, with enqueue_trial."
                )
            for key in template_trial.system_attrs:
                if key.startswith(_CONSTRAINTS):
                    _refuse("A trial with constraints was added.")
            for key in template_trial.user_attrs:
                self._check_attribute(key)
        return self._storage.create_new_trial(study_id, template_trial)

    def _check_attribute(self, key: str) -> None:
        if key not in self._public:
            _refuse(
                f"The user attribute {key!r} was not stored: it may depend on private "
                "records. If it does not, name it in public_attributes."
            )


def _refuse(message: str) -> NoReturn:
    raise UnreleasedScoreError(message)
