"""Who the container of a call is, read from the stores of the runtimes that make containers on this host."""
