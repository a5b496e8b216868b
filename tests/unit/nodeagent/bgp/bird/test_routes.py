"""BIRD's ``show route``, as 2.0.12 said it, parsed."""

from cni_calico.nodeagent.bgp.bird.routes import BirdRoute, parse_routes

SAID = [
    (1007, "Table master4:"),
    (1007, "0.0.0.0/0            unicast [kernel1 03:49:19.726] * (10)"),
    (1007, "\tvia 10.0.0.254 on eth0"),
    (1007, "10.65.1.0/26         blackhole [static1 03:49:19.724] * (200)"),
    (1007, "                     unreachable [static1 03:49:19.724] (200)"),
    (1007, "10.65.2.0/26         unicast [Mesh_10_0_0_2 2026-11-21 from 10.0.0.2] * (100/0) [i]"),
    (1007, "\tvia 10.0.0.7 on eth0 weight 1"),
    (1007, "\tvia 10.0.0.8 on eth1 weight 1"),
    (1007, "10.0.0.0/24          unicast [direct1 03:49:19.726] * (240)"),
    (1007, "\tdev eth0"),
    (1007, ""),
    (1007, "Table master6:"),
    (1007, "fd00::/64            unicast [direct1 03:49:19.726] * (240)"),
    (1007, "\tdev eth0"),
    (0, ""),
]


def test_routes():
    assert parse_routes(SAID) == (
        BirdRoute("0.0.0.0/0", "unicast", "kernel1", True, "", "10.0.0.254", "eth0"),
        BirdRoute("10.65.1.0/26", "blackhole", "static1", True),
        BirdRoute("10.65.1.0/26", "unreachable", "static1", False),
        BirdRoute("10.65.2.0/26", "unicast", "Mesh_10_0_0_2", True, "10.0.0.2", "10.0.0.7", "eth0"),
        BirdRoute("10.0.0.0/24", "unicast", "direct1", True, "", "", "eth0"),
        BirdRoute("fd00::/64", "unicast", "direct1", True, "", "", "eth0"),
    )
    assert [route.version for route in parse_routes(SAID)] == [4, 4, 4, 4, 4, 6]


def test_what_is_not_understood_is_passed_over():
    odd = [(1007, "\tvia nobody"), (1007, "no route at all"), (1007, "[]"), (1007, "10.0.0.0/8 unicast ["), (9001, "x")]
    assert parse_routes(odd) == (BirdRoute("10.0.0.0/8", "unicast", "", False),)
