"""One protocol for every object that can be saved and resumed."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from botorch_dp.exceptions import OptimizerStateError

STATE_VERSION = 2


class Stateful(ABC):
    """Something with settings and a state.

    A state is a dictionary with a version, the settings and what :meth:`_state` adds.
    It may be published unless the class says otherwise. It can be loaded only into an
    object of the same class with the same settings: everything is checked, and charged
    where it has to be, before anything changes.
    """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values.

        ``"method"`` is the name of the method.
        """

    def _state(self) -> dict[str, Any]:
        """Return what has to be saved in addition to the settings."""
        return {}

    def _check_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Raise unless :meth:`_restore` can take the state over.

        Any common exception will do: :meth:`load_state_dict` turns it into an
        ``OptimizerStateError``.
        """

    def _charge_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Charge what a checked state has spent and the ledger does not have."""

    def _restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over a state that has been checked and paid for."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, from which :meth:`load_state_dict` resumes.

        It may be published if the class is private: it holds releases and what follows
        from them.
        """
        return self._make_state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state of the same class with the same settings.

        Raises:
            OptimizerStateError: If it is not such a state. Nothing has changed.
        """
        self._take_state(state_dict)

    def _make_state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {"version": STATE_VERSION, "settings": self.settings(), **self._state()}
        )

    def _take_state(self, state_dict: Mapping[str, Any]) -> None:
        state = self.check_state_dict(state_dict)
        self._charge_state(state)
        self._restore(state)

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a state that can be loaded, and raise if it cannot.

        Raises:
            OptimizerStateError: If it is not a state of the same class with the same
                settings.
        """
        try:
            state = copy.deepcopy(dict(state_dict))
            check_version_and_settings(state, self.settings())
            self._check_state(state)
        except OptimizerStateError:
            raise
        except (
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise OptimizerStateError(
                f"state_dict is not a state of {type(self).__name__}: {error!r}."
            ) from error
        return state


def check_version_and_settings(
    state: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raise unless a state has the version and the settings that are expected.

    Args:
        state: The state that is to be loaded.
        settings: The settings of the object that loads it.
    """
    version = state.get("version")
    if version != STATE_VERSION:
        raise OptimizerStateError(
            f"state_dict must have version {STATE_VERSION}, got {version!r}: it was "
            "saved by another version of this library, or by something else."
        )
    theirs = state["settings"]
    if theirs.get("method") != settings.get("method"):
        raise OptimizerStateError(
            f"state_dict is a state of {theirs.get('method')!r}, not of "
            f"{settings.get('method')!r}."
        )
    different = [
        f"{key}={theirs.get(key)!r} there, {value!r} here"
        for key, value in settings.items()
        if theirs.get(key) != value
    ]
    if different:
        raise OptimizerStateError(
            f"state_dict is of a run with other settings: {', '.join(different)}."
        )
