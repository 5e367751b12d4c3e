"""Commands that compute with budgets alone: ``epsilon`` and ``plan``."""

import argparse
from typing import Any

from botorch_dp.cli.answer import Answer, add_command
from botorch_dp.exceptions import InvalidArgumentError


def add_to(commands: Any) -> None:
    """Add the commands to what ``add_subparsers`` returned."""
    _add_epsilon(commands)
    _add_plan(commands)


def _add_epsilon(commands: Any) -> None:
    parser = add_command(
        commands,
        "epsilon",
        _epsilon,
        help="Convert the cost of Gaussian releases to epsilon at a delta.",
        examples=(
            "  botorch-dp epsilon --mu 1 --delta 1e-5\n"
            "  botorch-dp epsilon --rho 0.5 --steps 10 --delta 1e-6\n"
            "  botorch-dp epsilon --sigma 1.1 --sample-rate 0.01 --steps 1000 "
            "--delta 1e-6\n"
        ),
    )
    cost = parser.add_mutually_exclusive_group(required=True)
    cost.add_argument("--mu", type=float, help="mu of Gaussian differential privacy")
    cost.add_argument("--rho", type=float, help="rho of zero-concentrated privacy")
    cost.add_argument(
        "--sigma",
        "--noise-multiplier",
        dest="sigma",
        type=float,
        help="standard deviation of the noise over the sensitivity",
    )
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument(
        "--steps", type=int, default=1, help="number of such releases (default: 1)"
    )
    parser.add_argument(
        "--sample-rate",
        type=float,
        default=1.0,
        help="probability with which a release uses a record: Poisson samples, for "
        "records that are added or removed (default: 1, no sampling)",
    )


def _epsilon(options: argparse.Namespace) -> Answer:
    from botorch_dp._validation import check_positive
    from botorch_dp.privacy import (
        GaussianEvent,
        PoissonGaussianEvent,
        PrivacyAccountant,
        PrivacyEvent,
        ZCDPEvent,
    )

    event: PrivacyEvent
    if options.rho is not None:
        if options.sample_rate != 1:
            raise InvalidArgumentError(
                "--sample-rate must be 1 with --rho: sampling amplifies Gaussian "
                "noise, which rho alone does not describe. Give --sigma."
            )
        event = ZCDPEvent(options.rho)
    else:
        sigma = options.sigma
        if sigma is None:
            sigma = 1 / check_positive("--mu", options.mu)
        if options.sample_rate == 1:
            event = GaussianEvent(sigma)
        else:
            event = PoissonGaussianEvent(sigma, options.sample_rate)
    accountant = PrivacyAccountant()
    accountant.compose(event, options.steps)
    spent = accountant.spent(options.delta)
    total = accountant.to_gdp()
    return Answer(
        f"epsilon = {spent.amount:.6g} at delta = {options.delta:g} "
        f"({options.steps} release(s), {spent.method})",
        {
            "epsilon": spent.amount,
            "delta": options.delta,
            "method": spent.method,
            "event": event.to_dict(),
            "num_releases": options.steps,
            "guarantee": None if total is None else total.to_dict(),
        },
    )


def _add_plan(commands: Any) -> None:
    parser = add_command(
        commands,
        "plan",
        _plan,
        help="Say what a budget can be expected to buy, before anything is spent.",
        examples=(
            "  botorch-dp plan --records 5000 --parameters 5 --epsilon 1 --delta 1e-6\n"
            "  botorch-dp plan --records 5000 --parameters 5 --epsilon 1 --delta 1e-6 "
            "--evaluations 30\n"
        ),
    )
    parser.add_argument("--records", type=int, required=True, help="number of records")
    parser.add_argument(
        "--parameters", type=int, required=True, help="number of parameters to tune"
    )
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument(
        "--evaluations",
        type=int,
        help="the most evaluations that the search may make; also prints the noise if "
        "as many scores are released one by one, as in Optuna",
    )


def _plan(options: argparse.Namespace) -> Answer:
    from dataclasses import asdict

    from botorch_dp.optimizers.auto.expect import expect
    from botorch_dp.optimizers.auto.search_plan import plan_search
    from botorch_dp.privacy import ApproxDP
    from botorch_dp.privacy.budget import (
        mean_sensitivity,
        share_of_a_step,
        warn_of_large_delta,
    )

    budget = ApproxDP(options.epsilon, options.delta)
    expectation = expect(options.records, options.parameters, budget)
    warn_of_large_delta(budget, options.records)
    # Only shares of the range matter, so any range will do.
    search = plan_search(
        num_records=options.records,
        dim=options.parameters,
        guarantee=budget,
        loss_range=(0.0, 1.0),
        max_evaluations=options.evaluations,
    )
    text = f"{search}\n\n{expectation}"
    data: dict[str, Any] = {
        "num_records": options.records,
        "dim": options.parameters,
        "guarantee": budget.to_dict(),
        "plan": {**search.to_dict(), "num_evaluations": search.num_evaluations},
        "outlook": asdict(expectation.outlook),
        "alternatives": [asdict(outlook) for outlook in expectation.alternatives],
    }
    if options.evaluations is not None:
        sensitivity = mean_sensitivity(1.0, options.records)
        share = share_of_a_step(
            budget, options.evaluations, sensitivity=sensitivity, size=1, secure=False
        )
        noise = sensitivity / share.mu
        text += (
            "\n(measured without a limit on evaluations)"
            f"\n\n{options.evaluations} scores released one by one: noise of "
            f"{noise:.3%} of the loss range on each (standard deviation)"
        )
        data["noise_of_each_score"] = noise
    return Answer(text, data)
