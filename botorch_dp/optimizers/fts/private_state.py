"""States that contain private data, and say so in the names of their methods.

Needs torch and numpy only.
"""

from collections.abc import Mapping
from typing import Any

from botorch_dp._deprecated import warn_deprecated
from botorch_dp.optimizers.core.state import Stateful


class PrivatelyStateful(Stateful):
    """Something whose state is private and must not be published."""

    def private_state_dict(self) -> dict[str, Any]:
        """Return the state: PRIVATE, because it contains the agents' scores."""
        return self._make_state()

    def load_private_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of the same class with the same settings.

        Raises:
            OptimizerStateError: If it is not such a state. Nothing has changed.
        """
        self._take_state(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """Return :meth:`private_state_dict`, under its deprecated name."""
        warn_deprecated("state_dict()", "private_state_dict()")
        return self.private_state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Call :meth:`load_private_state_dict`, under its deprecated name."""
        warn_deprecated("load_state_dict()", "load_private_state_dict()")
        self.load_private_state_dict(state_dict)
