# calico-kube-controllers, and by links of these names kube-controllers, check-status and wrapper; an ordinary exit.
import sys

from cni_calico.controllers.main import main

sys.exit(main())
