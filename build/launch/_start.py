# Runs in every executable before its own launcher, in the same namespace, as the first Python code of the process.
#
# Takes back what the boot loader put into the environment: no child that is started later (BIRD, nft, IPAM delegates)
# may look for its libraries in the bundle, or take itself for a part of it.
import sys
from os import environ

for _name in [name for name in environ if name.startswith("_PYI_")]:
    del environ[_name]
if environ.get("LD_LIBRARY_PATH", "").startswith(sys._MEIPASS):
    del environ["LD_LIBRARY_PATH"]
    if "LD_LIBRARY_PATH_ORIG" in environ:
        environ["LD_LIBRARY_PATH"] = environ.pop("LD_LIBRARY_PATH_ORIG")
sys.frozen = True

# an installer asks whether the executable starts on this host at all
if "CALICO_START_CHECK" in environ:
    sys.exit(0)
