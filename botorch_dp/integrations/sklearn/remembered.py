"""What a search remembers in this process only: never pickled, copied or shown."""

import contextlib
import hashlib
import secrets
import weakref
from typing import Any

import joblib
import numpy as np

from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.integrations.sklearn.separation import overlaps
from botorch_dp.privacy import Ledger


class Remembered:
    """The training records, the ledger and the state of a fit.

    The private records themselves are not kept. They are recognized by a weak
    reference, and by a hash under a random key, which is forgotten with this object. A
    pickle or a copy of it is empty.

    Args:
        training: The training inputs and targets, and further arguments of ``fit``.
        ledger: The ledger that was charged.
        private_inputs: The inputs of the private records.
        state: The public state of a search that was stopped, or None.
        leg: What else it takes to continue from the state.
    """

    def __init__(
        self,
        training: tuple[Any, Any, dict[str, Any]] | None = None,
        ledger: Ledger | None = None,
        private_inputs: Any = None,
        state: dict[str, Any] | None = None,
        leg: Any = None,
    ) -> None:
        self.training, self.ledger = training, ledger
        self.state, self.leg = state, leg
        self._key = secrets.token_bytes(32)
        self._digest: bytes | None = None
        self._reference: Any = None
        if private_inputs is not None:
            self._digest = self._digest_of(private_inputs)
            with contextlib.suppress(TypeError):  # lists have no weak references
                self._reference = weakref.ref(private_inputs)

    def are_private(self, X: Any) -> bool:
        """Return whether these inputs were private: the same, a view, or a copy."""
        known = None if self._reference is None else self._reference()
        if known is not None and (X is known or overlaps(X, known)):
            return True
        return self._digest is not None and self._digest_of(X) == self._digest

    def _digest_of(self, private_inputs: Any) -> bytes | None:
        with contextlib.suppress(Exception), quiet():
            if isinstance(private_inputs, np.ndarray):  # views have other strides
                private_inputs = np.ascontiguousarray(private_inputs)
            content = joblib.hash(private_inputs, hash_name="sha1").encode()
            return hashlib.blake2b(content, key=self._key).digest()
        return None

    def __reduce__(self) -> Any:
        return (Remembered, ())

    def __repr__(self) -> str:
        return "Remembered()"
