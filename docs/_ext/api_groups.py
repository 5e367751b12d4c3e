"""What people do with the library, and which page of the API documents it.

A page takes the public names that are defined in its modules; the longest prefix of a
module's name decides. So a new name lands on a page by itself, and a new package on the
page of the package around it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """A page of the API.

    Attributes:
        name: The name of its file.
        title: The title.
        text: What it is for, in Markdown.
        modules: Where its names are defined, without the name of the package, in the
            order of the page.
    """

    name: str
    title: str
    text: str
    modules: tuple[str, ...]


GROUPS: dict[str, tuple[Page, ...]] = {
    "Optimize": (
        Page(
            "minimize",
            "One call",
            "Minimize a mean of losses under a guarantee, and see beforehand what to "
            "expect. The guide is [](../../choosing.md).",
            ("optimizers.auto.minimize", "optimizers.auto"),
        ),
        Page(
            "curator",
            "A trusted curator",
            "Optimizers for whoever has the exact losses of every record. "
            "[](../../methods.md) shows them in code.",
            ("optimizers.gibo", "optimizers.release"),
        ),
        Page(
            "selection",
            "The best of many private runs",
            "Choose among training runs that are private themselves. "
            "[](../../train_and_tune.md) has examples.",
            ("optimizers.selection.private_selection", "optimizers.selection"),
        ),
        Page(
            "local",
            "Users who trust nobody",
            "Every user adds noise on the own device; a server only sees the sum of "
            "what is left.",
            ("optimizers.ldp.simulation", "optimizers.ldp"),
        ),
        Page(
            "federations",
            "Federations and votes",
            "Agents with data of their own search together, or vote for one setting.",
            (
                "optimizers.fts.simulation",
                "optimizers.fts",
                "optimizers.vote.simulation",
                "optimizers.vote",
            ),
        ),
        Page(
            "baselines",
            "Baselines that are not private",
            "The same interface without noise. Their certificates say NOT PRIVATE.",
            ("optimizers.baselines",),
        ),
        Page(
            "optimizers",
            "What all optimizers share",
            "`ask`, `tell`, `run`, results and states.",
            ("optimizers",),
        ),
    ),
    "Privacy": (
        Page(
            "guarantees",
            "Guarantees",
            "How strong the protection is, and what noise it needs. "
            "[](../../concepts.md) explains the terms.",
            ("privacy.guarantees", "privacy.calibration"),
        ),
        Page(
            "mechanisms",
            "Mechanisms",
            "The only way from private values to published ones: clip, charge, add "
            "noise.",
            (
                "privacy.mechanisms",
                "privacy.clipping",
                "privacy.noise",
                "privacy.paid_releases",
            ),
        ),
        Page(
            "ledger",
            "Ledger",
            "What was spent, and a cap that cannot be exceeded.",
            (
                "privacy.ledger",
                "privacy.ledger_parts",
                "privacy.ledger_book",
                "privacy.entries",
                "privacy.spending",
                "privacy.count",
                "privacy.stores",
                "privacy.account",
            ),
        ),
        Page(
            "certificate",
            "Certificate",
            "Who is protected, how much, and under which assumptions. "
            "The guide is [](../../certificates.md).",
            (
                "privacy.certificate",
                "privacy.declaration",
                "privacy.verification",
                "privacy.signatures",
                "privacy.registry",
                "privacy.report",
            ),
        ),
        Page(
            "audit",
            "Audit",
            "Lower bounds on what a mechanism leaks, from samples of its output.",
            ("privacy.audit",),
        ),
        Page(
            "accounting",
            "Accounting",
            "The cost of each kind of release, and of a history of them.",
            ("privacy.accountant", "privacy.privacy_event", "privacy"),
        ),
    ),
    "Models and acquisition": (
        Page(
            "acquisition",
            "Acquisition functions",
            "They work inside BoTorch's `optimize_acqf`, with and without privacy.",
            ("acquisition.gradient_information", "acquisition"),
        ),
        Page(
            "models",
            "Models",
            "Gaussian processes whose gradients are known in closed form.",
            ("models.gradient_gp", "models"),
        ),
        Page(
            "kernels",
            "Kernels",
            "Derivatives of GPyTorch's kernels.",
            ("models.kernels",),
        ),
        Page(
            "surrogates",
            "Surrogates of a gradient",
            "Small sets of points that stand for all earlier ones.",
            ("models.surrogates", "models.dictionary"),
        ),
    ),
    "Integrations": (
        Page(
            "sklearn",
            "scikit-learn",
            "The guide is [](../../private_search.md).",
            (
                "integrations.sklearn.private_search",
                "integrations.sklearn.space",
                "integrations.sklearn",
            ),
        ),
        Page(
            "opacus",
            "Opacus",
            "The guide is [](../../train_and_tune.md).",
            ("integrations.opacus.joint_budget", "integrations.opacus"),
        ),
        Page(
            "flower",
            "Flower",
            "Federations and votes among machines.",
            ("integrations.flower",),
        ),
        Page(
            "integrations",
            "More integrations",
            "Other libraries.",
            ("integrations",),
        ),
    ),
    "Problems and plots": (
        Page(
            "problems",
            "Problems",
            "Examples that need no data.",
            ("problems",),
        ),
        Page("plots", "Plots", "Pictures of releases and budgets.", ("plots",)),
        Page(
            "exceptions",
            "Errors and warnings",
            "None of them depends on private values.",
            ("exceptions",),
        ),
        Page("more", "More", "Everything else that is public.", ("",)),
    ),
}


def page_of(module: str) -> tuple[Page, int]:
    """Return the page that documents the names of a module, and its place there.

    Args:
        module: The name of the module, without the name of the package.

    Example:
        >>> page, place = page_of("privacy.clipping")
        >>> page.name, place
        ('mechanisms', 1)
    """
    found = [
        (len(prefix), page, place)
        for group in GROUPS.values()
        for page in group
        for place, prefix in enumerate(page.modules)
        if not prefix or f"{module}.".startswith(f"{prefix}.")
    ]
    _, page, place = max(found, key=lambda one: one[0])
    return page, place
