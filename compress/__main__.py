"""`python -m compress` is the command line."""

import atexit
import os
import sys

from compress.import_paths import leave_out_working_directory

leave_out_working_directory()  # before anything is imported that the working directory may hold too

from compress.cli.main import main  # noqa: E402

code = main()
if "TORCHELASTIC_RUN_ID" in os.environ:
    # The connection's threads now and then abort the interpreter while it ends, and with it the whole job.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
sys.exit(code)
