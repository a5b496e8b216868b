# calico-netavark: podman's plugin, an ordinary exit.
import sys

from cni_calico.netavark.main import main

sys.exit(main())
