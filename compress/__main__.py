"""`python -m compress` is the command line."""

import sys

from compress.cli.main import main

sys.exit(main())
