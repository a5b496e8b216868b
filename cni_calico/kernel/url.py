"""One HTTP GET, for readiness gates: what a program on this network reports about itself.

Rule: no redirects are followed, no body is read, and each step may take at most the time left until the deadline.
"""

from __future__ import annotations

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.redaction import shown_url


def read_status(url: str, deadline: Deadline) -> int:
    """The status code of a GET. Raises KernelError if there is no answer, DeadlineExceeded."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection, InvalidURL

    shown = shown_url(url)
    timeout_s = deadline.require(f"ask {shown}")
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    make = HTTPSConnection if scheme == "https" else HTTPConnection
    connection = None
    try:
        connection = make(host.rpartition("@")[2], timeout=timeout_s)
        connection.request("GET", slash + path or "/")
        return connection.getresponse().status
    except InvalidURL as e:  # its text may show a part of a password
        raise KernelError(f"cannot ask {shown}: its host, port or path cannot be one") from e
    except (OSError, HTTPException, ValueError) as e:
        raise KernelError(f"cannot ask {shown}: {e}", errno=getattr(e, "errno", 0) or 0) from e
    finally:
        if connection is not None:
            connection.close()
