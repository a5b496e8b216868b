"""PURE: the CNI contract itself: configuration, environment, results of every version, answers."""
