"""`python -m weir` is the `weir` command."""

import sys

from weir.cli import main

if __name__ == "__main__":
    sys.exit(main())
