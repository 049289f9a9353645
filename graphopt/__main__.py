"""``python -m graphopt`` is ``graphopt``."""

import sys

from graphopt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
