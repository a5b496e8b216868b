# calicoctl: an ordinary exit, its commands may have open files.
import sys

from cni_calico.ctl.main import main

sys.exit(main())
