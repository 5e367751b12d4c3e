"""The command ``audit``: tries to refute a claim by sampling."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp.cli.answer import Answer, add_command
from botorch_dp.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from botorch_dp.privacy import AuditResult, Guarantee

_CHOICES = ("exponential", "permute-and-flip")
_MECHANISMS = ("gaussian", "laplace", *_CHOICES)
# The more candidates, the closer a choice comes to its epsilon, and the rarer is the
# candidate that shows it.
_NUM_CANDIDATES = 8


def add_to(commands: Any) -> None:
    """Add the command to what ``add_subparsers`` returned."""
    parser = add_command(
        commands,
        "audit",
        _audit,
        help="Try to refute a claim by sampling; exit code 1 if it is refuted.",
        examples=(
            "  botorch-dp audit --mechanism gaussian --mu 1 --samples 20000\n"
            "  botorch-dp audit --mechanism laplace --epsilon 0.5\n"
            "  botorch-dp audit --mechanism gaussian --mu 1 --claim 0.5   # refuted\n"
            "  botorch-dp audit --files outputs.txt neighbour.txt --mu 1\n"
        ),
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--mechanism", choices=_MECHANISMS, help="a mechanism of this library"
    )
    source.add_argument(
        "--files",
        nargs=2,
        metavar=("OUTPUTS", "NEIGHBOUR"),
        help="outputs of your own mechanism on two neighbouring data sets, one number "
        "on each line",
    )
    guarantee = parser.add_mutually_exclusive_group(required=True)
    guarantee.add_argument("--mu", type=float, help="the mechanism's mu")
    guarantee.add_argument("--epsilon", type=float, help="the mechanism's epsilon")
    parser.add_argument(
        "--delta", type=float, default=0.0, help="delta of --epsilon (default: 0)"
    )
    parser.add_argument(
        "--claim",
        type=float,
        help="the mu or epsilon that is claimed (default: the mechanism's own)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=20_000,
        help="number of outputs on each of the two data sets (default: 20000); half of "
        "them choose the test, and the others count",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.99,
        help="probability that the bound is true (default: 0.99)",
    )
    parser.add_argument("--seed", type=int, help="seed of the noise (default: none)")


def _audit(options: argparse.Namespace) -> Answer:
    from botorch_dp.privacy import GDP, ApproxDP, PureDP

    own: Guarantee
    if options.mu is not None:
        own = GDP(options.mu)
        value = options.mu
    else:
        value = options.epsilon
        own = ApproxDP(value, options.delta) if options.delta else PureDP(value)
    claim = value if options.claim is None else options.claim
    result = _result(options, own)
    refuted = result.rejects(claim)
    at = f" at delta = {result.delta:g}" if result.delta else ""
    verdict = (
        f"REFUTED: the claim {result.unit} = {claim:g}{at} is false."
        if refuted
        else f"Not refuted: {result.unit} = {claim:g}{at} is consistent with the "
        "samples. That is no proof."
    )
    return Answer(
        f"{result.unit} is at least {result.lower_bound:.4g}{at}, with confidence "
        f"{result.confidence:g}, from {result.num_samples} of the outputs on each data "
        f"set\n{verdict}",
        {
            "lower_bound": result.lower_bound,
            "unit": result.unit,
            "delta": result.delta,
            "confidence": result.confidence,
            "num_samples": result.num_samples,
            "claim": claim,
            "refuted": refuted,
        },
        is_finding=refuted,
    )


def _result(options: argparse.Namespace, own: "Guarantee") -> "AuditResult":
    from botorch_dp.privacy import (
        GDP,
        audit_epsilon,
        audit_epsilon_finite,
        audit_mu,
    )

    if options.files is not None:
        samples, neighbours = (_numbers(file) for file in options.files)
    else:
        samples, neighbours = _outputs(options, own)
    if isinstance(own, GDP):
        return audit_mu(samples, neighbours, confidence=options.confidence)
    if options.mechanism in _CHOICES:
        return audit_epsilon_finite(
            samples,
            neighbours,
            num_outcomes=_NUM_CANDIDATES,
            delta=options.delta,
            confidence=options.confidence,
        )
    return audit_epsilon(
        samples, neighbours, delta=options.delta, confidence=options.confidence
    )


def _outputs(
    options: argparse.Namespace, own: "Guarantee"
) -> tuple["Tensor", "Tensor"]:
    """Return outputs of a mechanism on the two data sets that differ the most."""
    import torch

    from botorch_dp import privacy
    from botorch_dp._validation import check_count

    has_gaussian_noise = options.mechanism == "gaussian"
    if has_gaussian_noise != (options.mu is not None or options.delta > 0):
        raise InvalidArgumentError(
            "--mechanism gaussian needs --mu, or --epsilon with --delta; the others "
            "need --epsilon without --delta."
        )
    kind = {
        "gaussian": privacy.GaussianMechanism,
        "laplace": privacy.LaplaceMechanism,
        "exponential": privacy.ExponentialMechanism,
        "permute-and-flip": privacy.PermuteAndFlipMechanism,
    }[options.mechanism]
    mechanism = kind(own, sensitivity=1.0, generator=_generator(options.seed))
    number = check_count("--samples", options.samples, minimum=4)
    if options.mechanism in _CHOICES:
        # One candidate gains what a record can add, all others lose as much.
        pair = torch.zeros(2, _NUM_CANDIDATES, dtype=torch.float64, device="cpu")
        pair[1] -= 1.0
        pair[1, 0] = 1.0
    else:
        pair = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device="cpu")
    # These are outputs on made-up data, so nobody has to pay for them.
    samples, neighbours = (
        mechanism.release(
            values.expand(number, -1).contiguous(),
            ledger=privacy.PrivacyAccountant(),
            batch_dims=1,
        ).flatten()
        for values in pair
    )
    return samples.double(), neighbours.double()


def _generator(seed: int | None) -> "Generator | None":
    import torch

    return None if seed is None else torch.Generator("cpu").manual_seed(seed)


def _numbers(file: str) -> "Tensor":
    import torch

    words = Path(file).read_text("utf-8").split()
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise InvalidArgumentError(
            f"{file} must have one number on each line: {error}."
        ) from error
    return torch.tensor(values, dtype=torch.float64, device="cpu")
