"""Cells that raise whenever a reader looks at them."""

import datetime

import numpy as np


class Hostile:
    """Raises whatever it is asked."""

    def _refuse(self, *args):
        raise RuntimeError("a private record")

    __eq__ = __hash__ = __str__ = __repr__ = __float__ = __len__ = _refuse


class Exiting:
    """Ends the process when it is asked for its text, number or hash."""

    def _exit(self, *args):
        raise SystemExit("a private record")

    __eq__ = __hash__ = __str__ = __repr__ = __float__ = __len__ = _exit


class HostileRow(list):
    """A row that does not want to be counted."""

    __len__ = Exiting._exit


class HostileText(str):
    """Text that does not want to be looked at."""

    __slots__ = ()
    strip = rstrip = lower = __str__ = Hostile._refuse


class HostileSpan(datetime.timedelta):
    """A duration that does not want to be converted."""

    to_numpy = Hostile._refuse


HOSTILE = {
    "object": Hostile(),
    "exit": Exiting(),
    "row": HostileRow([1.0]),
    "text": HostileText("1"),
    "duration": HostileSpan(1),
    "years": np.timedelta64(5, "Y"),
    "months": np.timedelta64(5, "M"),
    "digits": "9" * 5000,
    "early": datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
}
