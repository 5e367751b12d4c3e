"""The library's errors and warnings: one base of each, and their few children.

None of them may be raised or warned because of the *values* of a private tensor:
that an exception occurred is itself a release. Shapes, dtypes and parameters are
public and may raise.
"""


class BotorchDPError(Exception):
    """Base of every error this library raises on purpose."""


class InvalidArgumentError(BotorchDPError, ValueError):
    """A public argument (a parameter, a shape, a dtype) is not usable."""


class UnsupportedConversionError(BotorchDPError):
    """A guarantee was asked to become one that it does not imply."""


class UnsupportedKernelError(BotorchDPError):
    """A kernel lacks the derivatives that a gradient of the process needs."""


class BudgetExceededError(BotorchDPError):
    """A charge would pass the ledger's cap; nothing was recorded or drawn."""


class OptimizerStateError(BotorchDPError):
    """An optimizer was called out of turn, or given a state that is not its own."""


class MessageError(BotorchDPError):
    """A message is not of this protocol, of another version, or of another run."""


class LedgerError(BotorchDPError):
    """A ledger file is not a ledger, is damaged, or disagrees with its owner."""


class MissingExtraError(BotorchDPError, ImportError):
    """An optional dependency is not installed; the message says what to install."""


class BotorchDPWarning(UserWarning):
    """Base of every warning this library gives."""


class IllConditionedWarning(BotorchDPWarning):
    """Rounding leaves few correct digits, or none."""


class WeakGuaranteeWarning(BotorchDPWarning):
    """The parameters protect less than their reader may think."""


class UselessReleaseWarning(BotorchDPWarning):
    """The noise is larger than everything it could be added to."""


class CollapseWarning(BotorchDPWarning):
    """A dictionary has too few points left to tell all directions apart."""


class ExperimentalWarning(BotorchDPWarning):
    """The interface may change in any release, without a deprecation."""
