"""Which service addresses a node announces, against a model that asks one address at a time."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.bgp.config.configuration import BgpConfiguration, parse_configuration
from cni_calico.nodeagent.bgp.config.services import Service, ServiceEndpoint, parse_service, select_service_routes

CLUSTER, EXTERNAL, BALANCER = ip_network("10.96.0.0/24"), ip_network("198.51.100.0/30"), ip_network("192.0.2.4/32")
CONFIGURATION = BgpConfiguration(
    service_cluster_cidrs=(CLUSTER,),
    service_external_cidrs=(EXTERNAL, ip_network("203.0.113.1/32")),
    service_load_balancer_cidrs=(BALANCER,),
)
addresses = st.sampled_from(
    [ip_address(a) for a in ("198.51.100.1", "203.0.113.1", "203.0.113.2", "192.0.2.4", "192.0.2.5", "fd00::5")]
)
services = st.builds(
    Service,
    namespace=st.just("n"),
    name=st.just("s"),
    cluster_ips=st.just((ip_address("10.96.0.9"),)),
    external_ips=st.lists(addresses, max_size=3).map(tuple),
    load_balancer_ips=st.lists(addresses, max_size=3).map(tuple),
    local=st.booleans(),
    endpoints=st.lists(
        st.builds(
            ServiceEndpoint, st.sampled_from([ip_address("10.65.0.1"), ip_address("fd65::1")]), st.sampled_from("ab")
        ),
        max_size=3,
    ).map(tuple),
    has_endpoints=st.booleans(),
)


def expected(service: Service) -> set[str]:
    here = any(e.node == "a" and e.address.version == 4 for e in service.endpoints)
    out = {"10.96.0.0/24", "198.51.100.0/30"}
    if service.local and here:
        out.add("10.96.0.9/32")
    for ip in service.external_ips:
        if ip.version == 4 and (ip in EXTERNAL or str(ip) == "203.0.113.1"):
            out |= (
                {f"{ip}/32"} if (service.local and here) or (not service.local and str(ip) == "203.0.113.1") else set()
            )
    for ip in service.load_balancer_ips:
        if str(ip) == "192.0.2.4" and (here or not service.local):
            out.add("192.0.2.4/32")
    return out


@given(services)
def test_announced(service: Service) -> None:
    routes = select_service_routes([service], CONFIGURATION, (CLUSTER,), node="a", excluded=False, version=4)
    assert {str(n) for n in routes.announced} == expected(service)
    assert len(set(routes.announced)) == len(routes.announced)
    excluded = select_service_routes([service], CONFIGURATION, (CLUSTER,), node="a", excluded=True, version=4)
    assert excluded.announced == ()
    assert excluded.ranges == routes.ranges == (CLUSTER, *CONFIGURATION.service_external_cidrs, BALANCER)


@pytest.mark.parametrize(("text", "aggregates"), [(None, True), ("Enabled", True), ("Disabled", False)])
def test_aggregation_is_no_unknown_field(text: str | None, aggregates: bool) -> None:
    """API servers fill it in: nothing is said of it on a fresh cluster."""
    spec = {"logSeverityScreen": "Info", "serviceLoadBalancerAggregation": text}
    configuration, problems = parse_configuration(Resource("BGPConfiguration", Metadata("default"), spec))
    assert configuration.aggregates_load_balancers is aggregates and problems == ()


RANGE = ip_network("192.0.2.4/31")


@given(services)
def test_announced_without_aggregation(service: Service) -> None:
    """Of a load balancers' range only the addresses that are in use, by the nodes that would announce such a range."""
    wide = replace(CONFIGURATION, service_load_balancer_cidrs=(RANGE,), aggregates_load_balancers=False)
    routes = select_service_routes([service], wide, (CLUSTER,), node="a", excluded=False, version=4)
    assert routes.ranges == (CLUSTER, *CONFIGURATION.service_external_cidrs, RANGE)
    here = any(e.node == "a" and e.address.version == 4 for e in service.endpoints)
    used = {f"{ip}/32" for ip in service.load_balancer_ips if ip.version == 4 and ip in RANGE}
    expected_of_others = expected(replace(service, load_balancer_ips=()))
    singles = used if (here if service.local else service.has_endpoints) else set()
    assert {str(n) for n in routes.announced} == expected_of_others | singles
    aggregated = replace(wide, aggregates_load_balancers=True)
    routes = select_service_routes([service], aggregated, (CLUSTER,), node="a", excluded=False, version=4)
    assert str(RANGE) in {str(n) for n in routes.announced}


def test_bad_addresses_are_named_and_left_out() -> None:
    service, problems = parse_service(
        {
            "metadata": {"namespace": "n", "name": "s"},
            "spec": {
                "clusterIP": "10.96.0.9",
                "externalIPs": ["198.51.100.1", "x; evil"],
                "externalTrafficPolicy": "Local",
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "::1%x"}]}},
        },
        [{"endpoints": [{"addresses": ["nope", "10.65.0.1"], "nodeName": "a"}, {"addresses": ["10.65.0.2"]}]}],
    )
    assert service is not None
    assert [str(a) for a in service.external_ips] == ["198.51.100.1"]
    assert service.load_balancer_ips == ()
    assert service.endpoints == (ServiceEndpoint(ip_address("10.65.0.1"), "a"),)
    assert {p.about for p in problems} == {"Service n/s"}
    assert len(problems) == 3


def test_services_without_an_address() -> None:
    for spec in ({"clusterIP": "None"}, {"type": "ExternalName", "externalName": "x"}, {}):
        assert parse_service({"metadata": {"name": "s"}, "spec": spec}) == (None, ())
