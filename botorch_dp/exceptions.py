"""The errors and warnings of the library, each with one base class.

None of them may depend on the *values* of a private tensor, because an exception is
itself a release. Shapes, dtypes and parameters are public and may raise.
"""


class BotorchDPError(Exception):
    """The base class of all errors of this library."""


class InvalidArgumentError(BotorchDPError, ValueError):
    """A public argument (a parameter, a shape, a dtype) is invalid."""


class UnsupportedConversionError(BotorchDPError):
    """A guarantee does not imply the requested one."""


class UnsupportedKernelError(BotorchDPError):
    """A kernel does not have the derivatives that gradients of the process need."""


class BudgetExceededError(BotorchDPError):
    """A charge would exceed the ledger's cap; nothing was recorded or drawn."""


class OptimizerStateError(BotorchDPError):
    """An optimizer was called in the wrong order, or got the state of another one."""


class UnreleasedScoreError(BotorchDPError):
    """A study was given something that may depend on private records without noise."""


class MessageError(BotorchDPError):
    """A message has another protocol, another version or another run."""


class LedgerError(BotorchDPError):
    """A ledger file is not a ledger, is damaged, or has unexpected content."""


class LedgerUnavailableError(LedgerError):
    """A ledger cannot be reached or opened now, which says nothing about its rows."""


class CertificateError(BotorchDPError):
    """A certificate was altered, or does not agree with its ledger."""


class MissingExtraError(BotorchDPError, ImportError):
    """An optional dependency is not installed; the message says what to install."""


class BotorchDPWarning(UserWarning):
    """The base class of all warnings of this library."""


class IllConditionedWarning(BotorchDPWarning):
    """Rounding errors leave few correct digits, or none."""


class WeakGuaranteeWarning(BotorchDPWarning):
    """The parameters protect less than a reader may expect."""


class UselessReleaseWarning(BotorchDPWarning):
    """The noise is larger than any possible value."""


class SearchStoppedWarning(BotorchDPWarning):
    """A search ended before its plan did, at a limit that the caller set."""


class LostReleaseWarning(BotorchDPWarning):
    """A release was paid for, and an interruption came before it was kept."""


class UnpaidReleaseWarning(BotorchDPWarning):
    """A number about private records was computed without noise or charge."""


class RareClassWarning(BotorchDPWarning):
    """The score says little about a class that has few records."""


class CollapseWarning(BotorchDPWarning):
    """A dictionary has too few points left to distinguish all directions."""


class ExperimentalWarning(BotorchDPWarning):
    """The interface may change in any release, without a deprecation."""
