"""Looks up SRV records (RFC 2782) for etcd's discovery, because the system's resolver library cannot ask for them.

Rule: limited by the deadline; a name server that does not answer, or gives a bad answer, is skipped. dnspython is
imported here alone, and only when discovery is configured.
"""

from __future__ import annotations

from dns.resolver import Resolver

from cni_calico.datastore.etcd.config import EtcdEndpoint
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable

RESOLV_CONF = "/etc/resolv.conf"
PORT = 53
ATTEMPT_S = 1.0
_SERVICES = (("_etcd-client-ssl._tcp", True), ("_etcd-client._tcp", False))


def make_resolver() -> Resolver:
    """A resolver that asks the name servers in resolv.conf(5), or the local one if it names none."""
    from dns.resolver import NoResolverConfiguration, Resolver

    try:
        resolver = Resolver(RESOLV_CONF)
    except (NoResolverConfiguration, OSError, ValueError):
        resolver = Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
    resolver.port = PORT
    resolver.timeout = ATTEMPT_S
    return resolver


def lookup_srv(name: str, resolver: Resolver, deadline: Deadline) -> list[tuple[str, int]]:
    """The hosts and ports of a name, best first; [] if it has none. Raises DatastoreUnavailable, DeadlineExceeded."""
    from dns.exception import DNSException
    from dns.rdtypes.IN.SRV import SRV
    from dns.resolver import NXDOMAIN, NoAnswer

    attempts_s = ATTEMPT_S * max(1, len(resolver.nameservers))
    lifetime_s = min(attempts_s, deadline.require(f"look up {name}"))
    try:
        answer = resolver.resolve(name, "SRV", search=False, lifetime=lifetime_s)
    except (NXDOMAIN, NoAnswer):
        return []
    except (DNSException, OSError, ValueError) as e:
        raise DatastoreUnavailable(f"cannot look up {name}: {' '.join(str(e).split())[:300]}") from e
    records = [
        record for record in answer if isinstance(record, SRV) and len(record.target) > 1
    ]  # the root as the target: the service is not offered
    records.sort(key=lambda r: (r.priority, -r.weight, r.target, r.port))
    return [(record.target.to_text(omit_final_dot=True), record.port) for record in records]


def discover_endpoints(domain: str, deadline: Deadline) -> list[EtcdEndpoint]:
    """The etcd endpoints of a domain, those with TLS first. Raises DatastoreUnavailable if there are none."""
    resolver = make_resolver()
    found = [
        EtcdEndpoint(host, port, tls)
        for service, tls in _SERVICES
        for host, port in lookup_srv(f"{service}.{domain}", resolver, deadline)
    ]
    if not found:
        names = " nor ".join(f"{service}.{domain}" for service, _ in _SERVICES)
        raise DatastoreUnavailable(f"cannot find etcd: neither {names} has SRV records")
    return found
