# calico-install: puts the plugin on the host; an ordinary exit.
import sys

from cni_calico.install.main import main

sys.exit(main())
