# calicoctl, which carries out one command and ends. Cleaning up is skipped: everything is closed by then; an orderly
# end of the interpreter, and looking for reference cycles, take a fifth of a "get".
import gc
import os

gc.set_threshold(100_000)

from cni_calico.ctl.main import main  # noqa: E402

_status = main()
os._exit(_status)
