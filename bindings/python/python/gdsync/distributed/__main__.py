"""``python -m gdsync.distributed PROGRAM``: runs a program of torch.distributed, for which the backend is registered."""

import os
import runpy
import sys

if len(sys.argv) < 2:
    sys.exit("usage: python -m gdsync.distributed PROGRAM [ARGUMENTS]")
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
