"""PURE: the script of the page of flows, whole.

Rule: it loads nothing and leaves no name outside; its parts stand in the order in which they need each other.
"""

from cni_calico.ctl.flows.page.script.filters import FILTERS
from cni_calico.ctl.flows.page.script.keys import KEYS
from cni_calico.ctl.flows.page.script.live import LIVE
from cni_calico.ctl.flows.page.script.summary import SUMMARY
from cni_calico.ctl.flows.page.script.table import TABLE
from cni_calico.ctl.flows.page.script.texts import TEXTS

MOST = 2000  # flows that a page has

SCRIPT = f'(() => {{\n"use strict";\nconst MOST = {MOST};{TEXTS}{FILTERS}{TABLE}{SUMMARY}{LIVE}{KEYS}}})();'
