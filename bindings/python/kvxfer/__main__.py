"""``python -m kvxfer``: see kvxfer._cli."""

import sys

from kvxfer._cli import main

if __name__ == "__main__":
    sys.exit(main())
