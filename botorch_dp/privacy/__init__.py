"""The privacy core: the only door from private data to what may be published."""

from botorch_dp.privacy.accountant import PrivacyAccountant, Spending
from botorch_dp.privacy.audit import (
    AuditResult,
    audit_epsilon,
    audit_epsilon_finite,
    audit_mu,
    mu_audit_power,
    worst_log_ratio,
)
from botorch_dp.privacy.calibration import (
    classical_gaussian_noise_std,
    gaussian_guarantee,
    gaussian_noise_std,
    gaussian_rdp,
    laplace_guarantee,
    laplace_scale,
    zcdp_noise_std,
)
from botorch_dp.privacy.certificate import Certificate
from botorch_dp.privacy.clipping import (
    PrivateClippingDiagnostics,
    clip_rows,
    clipped_row_sum,
    mallows_gradient_bound,
    mallows_weights,
    private_clipping_diagnostics,
)
from botorch_dp.privacy.counts import (
    AtLeast,
    AtMost,
    Binomial,
    Count,
    Poisson,
    TruncatedNegativeBinomial,
)
from botorch_dp.privacy.declaration import Declaration
from botorch_dp.privacy.entries import LedgerBudget, LedgerEntry, LedgerPlan
from botorch_dp.privacy.events import (
    ApproxEvent,
    AssumedEvent,
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
)
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee, PureDP
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.mechanisms import (
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    PermuteAndFlipMechanism,
    SharedGaussianMechanism,
    SubsampledGaussianMechanism,
    noise_multiplier_for,
)
from botorch_dp.privacy.noise import (
    NoiseSource,
    SecureNoise,
    SeededNoise,
    SystemNoise,
)
from botorch_dp.privacy.paid_releases import PaidReleases
from botorch_dp.privacy.selection import SelectionEvent
from botorch_dp.privacy.selection_planning import least_noise
from botorch_dp.privacy.signatures import Signature, create_key
from botorch_dp.privacy.stores.postgres import grant_roles
from botorch_dp.privacy.verification import Verification

__all__ = [
    "GDP",
    "RDP",
    "ApproxDP",
    "ApproxEvent",
    "AssumedEvent",
    "AtLeast",
    "AtMost",
    "AuditResult",
    "Binomial",
    "Certificate",
    "Count",
    "Declaration",
    "ExponentialEvent",
    "ExponentialMechanism",
    "FixedSizeGaussianEvent",
    "GaussianEvent",
    "GaussianMechanism",
    "Guarantee",
    "LaplaceEvent",
    "LaplaceMechanism",
    "Ledger",
    "LedgerBudget",
    "LedgerEntry",
    "LedgerPlan",
    "Mechanism",
    "NoiseSource",
    "PaidReleases",
    "PermuteAndFlipEvent",
    "PermuteAndFlipMechanism",
    "Poisson",
    "PoissonGaussianEvent",
    "PrivacyAccountant",
    "PrivacyEvent",
    "PrivateClippingDiagnostics",
    "PureDP",
    "PureEvent",
    "SecureNoise",
    "SeededNoise",
    "SelectionEvent",
    "SharedGaussianMechanism",
    "Signature",
    "Spending",
    "SubsampledGaussianMechanism",
    "SystemNoise",
    "TruncatedNegativeBinomial",
    "Verification",
    "ZCDPEvent",
    "audit_epsilon",
    "audit_epsilon_finite",
    "audit_mu",
    "classical_gaussian_noise_std",
    "clip_rows",
    "clipped_row_sum",
    "create_key",
    "gaussian_guarantee",
    "gaussian_noise_std",
    "gaussian_rdp",
    "grant_roles",
    "laplace_guarantee",
    "laplace_scale",
    "least_noise",
    "mallows_gradient_bound",
    "mallows_weights",
    "mu_audit_power",
    "noise_multiplier_for",
    "private_clipping_diagnostics",
    "worst_log_ratio",
    "zcdp_noise_std",
]
