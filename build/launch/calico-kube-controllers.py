# calico-kube-controllers, also linked as kube-controllers, check-status and wrapper; an ordinary exit.
import sys

from cni_calico.shortage import shortage_of

try:
    from cni_calico.controllers.main import main

    status = main()
except Exception as e:  # lack of memory gets one line; everything else is a defect, and shown as one
    lacking = shortage_of(e)
    if not lacking:
        raise
    sys.stderr.write(f"calico-kube-controllers: cannot continue: this host is short of {lacking}\n")
    status = 1
sys.exit(status)
