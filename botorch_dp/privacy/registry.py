"""Certificates as entries of the Differential Privacy Deployments Registry.

The names of the fields are those of the registry's public entries (the repository
opendp/deployments-registry-data), which follow [Nanayakkara2025registry]_. Its schema
file was not available here; ``docs/nist.md`` says what was inferred.

References:
    .. [Nanayakkara2025registry] P. Nanayakkara, E. Ghazi and S. Vadhan. Practitioners'
        Perspectives on a Differential Privacy Deployment Registry. arXiv:2509.13509.
"""

import re
from typing import TYPE_CHECKING, Any

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import certificate_text as words
from botorch_dp.privacy.declaration import NOT_STATED

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate


def registry_entry(certificate: "Certificate") -> dict[str, Any]:
    """Return a draft of an entry, as plain values that YAML and JSON can hold.

    Args:
        certificate: A certificate that guarantees something.
    """
    if not certificate.private:
        raise InvalidArgumentError(
            "certificate must guarantee something, got one that is not private."
        )
    declaration, year = certificate.declaration, certificate.created[:4]
    name = declaration.data_set or NOT_STATED
    slug = re.sub(
        r"[^a-z0-9]+", "-", f"{name} {declaration.owner or ''} {year}".lower()
    )
    flavor, parameters = _flavor(certificate)
    is_local = words.trust(certificate).startswith("local")
    return {
        "url_slug": slug.strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": name,
                "data_curators": [declaration.owner or NOT_STATED],
                "intended_use": declaration.purpose or NOT_STATED,
                "data_product_type": "Machine learning model",
                "data_product_region": NOT_STATED,
                "data_product_sector": NOT_STATED,
                "description": " ".join(certificate.sentences),
                "publication_date": certificate.created,
            },
            "dp_flavor": {
                "name": flavor,
                "data_domain": name,
                "unprotected_quantities": "; ".join(words.excluded(certificate)),
            },
            "privacy_loss": {
                "privacy_unit": f"{certificate.unit.capitalize()}-level",
                "privacy_unit_description": _labelled(
                    certificate, "protects", "neighbours", "contribution"
                ),
                "privacy_parameters": parameters,
                "privacy_parameters_description": _labelled(
                    certificate, "guarantee", "Renyi DP", "epsilon", "cap"
                ),
            },
            "model": {
                "model_name": "Local" if is_local else "Central",
                "model_name_description": words.trust(certificate),
                "release_type": (
                    "One release" if certificate.num_releases == 1 else "Many releases"
                ),
                "release_type_description": f"{certificate.num_releases} release(s)",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Everything that is computed from the releases.",
                "composition": certificate.accountant,
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": _labelled(
                    certificate, "holds", "bias"
                ),
                "mechanisms": _labelled(certificate, "noise", "versions"),
                "justification": NOT_STATED,
            },
            "resources": {
                "sources": _labelled(certificate, "ledger", "audit"),
                "registry_authors": [declaration.contact or NOT_STATED],
            },
        },
    }


def _flavor(certificate: "Certificate") -> tuple[str, dict[str, float]]:
    """Return the name of the guarantee in the registry, and its parameters."""
    if certificate.pure_epsilon is not None:
        return "Pure DP", {"epsilon": certificate.pure_epsilon}
    if certificate.guarantee is not None:
        return "Gaussian DP", {"mu": certificate.guarantee.to_dict()["mu"]}
    if certificate.rho is not None:
        return "Zero-concentrated DP", {"rho": certificate.rho}
    delta = certificate.main_delta
    if delta is None:
        return "Approximate DP", {}
    return "Approximate DP", {"epsilon": certificate.epsilons[delta], "delta": delta}


def _labelled(certificate: "Certificate", *labels: str) -> str:
    """Return rows of the certificate with these labels, as one text."""
    found = words.rows(certificate)
    return "; ".join(f"{name}: {text}" for name, text in found if name in labels)
