# calico-node: its services run for months, so the garbage collector of reference cycles stays on; an ordinary exit.
import sys

from cni_calico.shortage import shortage_of

try:
    if hasattr(sys, "_MEIPASS"):  # not from the sources
        from cni_calico.packed import use_pack

        use_pack(sys._MEIPASS, "calico-node")
    from cni_calico.nodeagent.main import main

    status = main()
except Exception as e:  # lack of memory gets one line; everything else is a defect, and shown as one
    lacking = shortage_of(e)
    if not lacking:
        raise
    sys.stderr.write(f"calico-node: cannot continue: this host is short of {lacking}\n")
    status = 1
sys.exit(status)
