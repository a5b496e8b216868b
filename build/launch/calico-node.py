# calico-node: its services run for months, so the collector of reference cycles stays on; an ordinary exit.
import sys

from cni_calico.nodeagent.main import main

sys.exit(main())
