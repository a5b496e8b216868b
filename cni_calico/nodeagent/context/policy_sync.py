"""PURE: the parameter of policy sync.

Rule: what is no path turns nothing on.
"""

from __future__ import annotations

from cni_calico.daemon.settings_table import Kind


def parse_prefix(text: str) -> str:
    """The directory, without a "/" at its end; "" for none. Raises ValueError."""
    if text in ("", "none"):
        return ""
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected an absolute path, such as /var/run/nodeagent")
    return text.rstrip("/")


SYNC_PREFIX = (
    Kind(parse_prefix, "path"),
    "",
    "Directory of creds/ and mount/, where programs in pods follow the policies of their pod, as Calico's Dikastes "
    "does; none: nobody does.",
)
