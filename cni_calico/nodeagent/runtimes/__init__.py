"""What this host's container runtimes know of its attachments, without Kubernetes: their names, and which are over."""
