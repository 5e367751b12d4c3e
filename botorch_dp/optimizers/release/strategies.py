"""The release strategies, by the names that users know them by."""

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.adaptive import AdaptiveRelease
from botorch_dp.optimizers.release.kusner.releases import (
    KusnerRelease,
    LipschitzRelease,
    NoiseFreeRelease,
)
from botorch_dp.optimizers.release.stable import StableRelease
from botorch_dp.optimizers.release.strategy import ReleaseStrategy

_OUTPUTS = ("both", "point", "value")
RELEASES: dict[str, type[ReleaseStrategy]] = {
    "stable": StableRelease,
    "kusner": KusnerRelease,
    "kusner-noise-free": NoiseFreeRelease,
    "lipschitz": LipschitzRelease,
}


def choose_strategy(
    release: str, adaptive: bool, output: str | None
) -> tuple[type[ReleaseStrategy], str]:
    """Return the class of the strategy, and what it releases."""
    kind = RELEASES[check_choice("release", release, tuple(RELEASES))]
    if adaptive and release != "stable":
        raise InvalidArgumentError(
            f"adaptive=True needs release='stable', got release={release!r}."
        )
    kind = AdaptiveRelease if adaptive else kind
    output = check_choice("output", output or kind.outputs[0], _OUTPUTS)
    if output not in kind.outputs:
        raise InvalidArgumentError(
            f"output must be {kind.outputs[0]!r} with release={release!r}, got "
            f"{output!r}."
        )
    return kind, output
