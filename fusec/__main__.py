"""``python -m fusec`` is the command ``fusec``. May import ``fusec.cli``."""

import sys

from fusec.cli import main

sys.exit(main())
