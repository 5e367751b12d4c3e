"""The entry point: parses arguments, runs a command and returns its exit code.

==== =====================================================================
code meaning
==== =====================================================================
0    the command did what was asked, and found nothing wrong
1    a finding: a damaged ledger, an altered certificate, a refuted claim
2    the command could not be run: wrong arguments, a file that is missing, a
     server that does not answer
==== =====================================================================
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from botorch_dp.cli import audits, budgets, certificates, ledgers
from botorch_dp.exceptions import (
    BotorchDPError,
    CertificateError,
    LedgerError,
    LedgerUnavailableError,
)

_EPILOG = """\
exit codes: 0 all is well; 1 a finding (a damaged ledger, an altered certificate, a
refuted claim); 2 the command could not be run (wrong arguments, a missing file, a
server that does not answer)

examples:
  botorch-dp epsilon --mu 1 --delta 1e-5
  botorch-dp plan --records 5000 --parameters 5 --epsilon 1 --delta 1e-6
  botorch-dp ledger verify ledger.sqlite
  botorch-dp certificate verify certificate.json --ledger ledger.sqlite
  botorch-dp certificate html certificate.json --ledger ledger.sqlite --open
  botorch-dp audit --mechanism gaussian --mu 1
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: The words after the name of the program; by default those with which
            this process was started.

    Returns:
        0, 1 for a finding, or 2 if the command could not be run.

    Example:
        >>> main(["epsilon", "--mu", "1", "--delta", "1e-5"])
        epsilon = 4.37718 at delta = 1e-05 (1 release(s), exact Gaussian composition)
        0
    """
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            answer = options.run(options)
        except LedgerUnavailableError as error:
            return _complain(error, code=2)
        except (CertificateError, LedgerError) as error:
            return _complain(error, code=1)
        except (BotorchDPError, OSError, UnicodeDecodeError) as error:
            return _complain(error, code=2)
    _print(answer.to_json() if options.json else answer.text)
    return 1 if answer.is_finding else 0


def _print(text: str) -> None:
    """Print a text, of which the reader of a pipe may want the first lines only."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="botorch-dp",
        description="Differentially private Bayesian optimization: budgets, ledgers, "
        "certificates and audits.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="command", required=True)
    for group in (budgets, ledgers, certificates, audits):
        group.add_to(commands)
    return parser


class _Version(argparse.Action):
    """Print the version; it is read only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import botorch_dp

        print(botorch_dp.__version__)
        parser.exit()


def _complain(error: Exception, *, code: int) -> int:
    print(f"botorch-dp: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"botorch-dp: warning: {' '.join(str(message).split())}", file=sys.stderr)
