# calico: the process ends without tidying up the interpreter, which would take a millisecond of every CNI call.
import os
import sys

from cni_calico.plugin.main import main

_status = main()
for _stream in (sys.stdout, sys.stderr):
    if _stream is not None:
        _stream.flush()
os._exit(_status)
