"""The environment of agents in tests and benches that are not about flows.

Rule: what is denied is recorded by default, by a process beside each agent and in rules that report: hundreds of tests
would start one for nothing, and benches compare with versions that had none. The default itself is what agents of
upgrades, takeovers, hosts of containers, the demo and kubelets run with, and what ``netns/flows/test_default.py`` is
about.
"""

UNRECORDED = {"FELIX_FLOWS": "Disabled"}
