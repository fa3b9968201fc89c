"""`python -m dynbench`."""

import sys

from dynbench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
