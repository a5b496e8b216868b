# calicoctl: an ordinary exit, because its commands may have open files.
import sys

from cni_calico.ctl.main import main

sys.exit(main())
