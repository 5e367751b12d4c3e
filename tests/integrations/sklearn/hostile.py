"""Cells that raise whenever a reader looks at them."""

import datetime


class Hostile:
    """Raises whatever it is asked."""

    def _refuse(self, *args):
        raise RuntimeError("a private record")

    __eq__ = __hash__ = __str__ = __repr__ = __float__ = __len__ = _refuse


class HostileText(str):
    """Text that does not want to be looked at."""

    __slots__ = ()
    strip = rstrip = lower = __str__ = Hostile._refuse


class HostileSpan(datetime.timedelta):
    """A duration that does not want to be converted."""

    to_numpy = Hostile._refuse


HOSTILE = {
    "object": Hostile(),
    "text": HostileText("1"),
    "duration": HostileSpan(1),
    "digits": "9" * 5000,
    "early": datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
}
