"""``python -m botorch_dp`` is the command ``botorch-dp``."""

import sys

from botorch_dp.cli import main

if __name__ == "__main__":
    sys.exit(main())
