"""PURE: the CNI contract: configuration, environment, results of every version, answers."""
