"""The names of the strategies, and what each may release."""

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.adaptive import AdaptiveRelease
from botorch_dp.optimizers.release.kusner.releases import (
    KusnerRelease,
    LipschitzRelease,
)
from botorch_dp.optimizers.release.stable import StableRelease
from botorch_dp.optimizers.release.strategies import choose_strategy


@pytest.mark.parametrize(
    ("release", "adaptive", "output", "expected"),
    [
        ("stable", False, None, (StableRelease, "point")),
        ("stable", False, "both", (StableRelease, "both")),
        ("stable", True, "point", (AdaptiveRelease, "point")),
        ("kusner", False, None, (KusnerRelease, "both")),
        ("lipschitz", False, None, (LipschitzRelease, "value")),
    ],
)
def test_choice_and_default_output(release, adaptive, output, expected):
    assert choose_strategy(release, adaptive, output) == expected


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("exact", False, None), "release must be one of"),
        (("kusner", True, None), r"adaptive=True needs.*'kusner'"),
        (("stable", False, "all"), "output must be one of"),
        (("lipschitz", False, "point"), r"output must be 'value'.*'point'"),
    ],
)
def test_misuse(arguments, match):
    with pytest.raises(InvalidArgumentError, match=match):
        choose_strategy(*arguments)
