"""Noise for the messages to come, drawn from the system's entropy in one call."""

import os
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

# How many numbers are drawn in a call: 128 kB. The entropy and its transformation then
# take less time than the addition.
_NUMBERS = 2**14


class NoiseAhead:
    r"""Adds noise to messages, and draws it for many messages at once.

    **Why this is private.** Noise does not depend on data. A message has the same
    distribution whether its noise was drawn just before or some messages earlier,
    provided that no other message uses the same noise and nobody has seen it.
    Therefore

    * a draw is removed before it is used, so that no two threads use the same one;
    * copies, pickles and forked processes start without draws and make their own;
    * no state and no representation contains draws.

    The caller charges for a message before it calls :meth:`add`.

    Args:
        draw: A function that adds independent noise to every entry of a tensor.

    Example:
        >>> from botorch_dp.privacy.noise import SystemNoise
        >>> noise = NoiseAhead(lambda zeros: SystemNoise().add_gaussian(zeros, 2.0))
        >>> noise.add(torch.zeros(3)).shape
        torch.Size([3])
    """

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        self._draw = draw
        self._draws: dict[tuple[torch.Size, torch.device], list[Tensor]] = {}
        _ALIVE.add(self)

    def add(self, private_value: Tensor) -> Tensor:
        """Return the value plus noise of its own, added in double precision."""
        value = private_value.detach().nan_to_num(0.0, 0.0, 0.0)
        shape, device = value.shape, value.device
        draws = self._draws.setdefault((shape, device), [])
        try:
            noise = draws.pop()
        except IndexError:
            count = max(1, _NUMBERS // max(1, shape.numel()))
            zeros = torch.zeros(count, *shape, dtype=torch.float64, device=device)
            noise, *others = self._draw(zeros).unbind()
            draws.extend(others)
        # In memory of its own: a draw shares its memory with the draws of others.
        return (noise + value).to(value.dtype)

    def forget(self) -> None:
        """Throw all draws away."""
        self._draws = {}

    def __reduce__(self) -> tuple[type["NoiseAhead"], tuple[Callable[..., Tensor]]]:
        return type(self), (self._draw,)


_ALIVE: "weakref.WeakSet[NoiseAhead]" = weakref.WeakSet()


def _forget_all() -> None:
    for noise in _ALIVE:
        noise.forget()


if hasattr(os, "register_at_fork"):  # a child must not use the noise of its parent
    os.register_at_fork(after_in_child=_forget_all)
