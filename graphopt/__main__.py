"""``python -m graphopt`` runs the command line."""

import sys

from graphopt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
