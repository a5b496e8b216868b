"""Policies, requests, and what must become of them: written by hand from what the rules mean.

A request: METHOD PATH [from POD] [as NAMESPACE/ACCOUNT | as PRINCIPAL] [to PORT] [udp]. "-" for METHOD and PATH: no
HTTP. All go to the pod shop/web; POD is a name in ADDRESSES, "cart" without one.
"""

from __future__ import annotations

from typing import Any

ADDRESSES = {
    "cart": "10.0.0.2",  # shop, app == 'cart'
    "count": "10.0.0.3",  # stock, app == 'count'
    "partner": "192.0.2.9",  # in the GlobalNetworkSet partners
    "stranger": "198.51.100.7",
    "cart6": "fd00::2",  # shop, app == 'cart'
    "mapped": "::ffff:10.0.0.2",
}
NAMESPACES = {"shop": {"team": "a"}, "stock": {"team": "b"}, "lost": {}}
ACCOUNTS = {"shop.cart": {"tier": "front"}, "shop.plain": {}, "stock.count": {"tier": "back"}, "stock.cart": {}}
NET_POLICY, GLOBAL, PROFILE = ("NetworkPolicy", "shop"), ("GlobalNetworkPolicy", ""), ("Profile", "")


def allow(**rule: Any) -> dict[str, Any]:
    return {"action": "Allow", "protocol": "TCP", **rule}


def http(methods: list[str] | None = None, **paths: str | list[str]) -> dict[str, Any]:
    listed = [{kind: one} for kind, some in paths.items() for one in ([some] if isinstance(some, str) else some)]
    return {key: value for key, value in (("methods", methods), ("paths", listed)) if value}


Case = tuple[tuple[str, str], list[dict[str, Any]], str, str]  # kind and namespace, ingress rules, allowed, refused

CASES: dict[str, Case] = {
    "anything": (NET_POLICY, [allow()], "GET / \n POST /x/y?z \n - - \n OPTIONS *", "- - udp"),
    "one method": (
        NET_POLICY, [allow(http=http(["GET"]))],
        "GET / \n GET /any/where \n - -",
        "POST / \n get / \n HEAD / \n GETS / \n PATCH /",
    ),
    "methods": (NET_POLICY, [allow(http=http(["GET", "HEAD"]))], "GET / \n HEAD /", "PUT / \n DELETE / \n OPTIONS *"),
    "any method": (NET_POLICY, [allow(http=http(["*"]))], "GET / \n BREW /pot \n - -", "GET / udp"),
    "an exact path": (
        NET_POLICY, [allow(http=http(exact="/status"))],
        "GET /status \n POST /status \n GET /status?full=1 \n GET /status#x \n GET //status \n GET /./status \n"
        "GET /a/../status \n GET /%73tatus \n GET /status;v=1 \n GET \\status \n - -",
        "GET /status/ \n GET /statuses \n GET /Status \n GET / \n GET /status/../x \n GET /%2573tatus",
    ),
    "a prefix": (
        NET_POLICY, [allow(http=http(prefix="/public"))],
        "GET /public \n GET /public/ \n GET /public/a/b \n GET /x/../public/a \n GET /public?x=/../admin \n"
        "GET /public/./a \n GET /%70ublic/a",
        "GET /publicity \n GET /PUBLIC/a \n GET /public/../admin \n GET /public/%2e%2e/admin \n"
        "GET /public%2f..%2fadmin \n GET /public/..;/admin \n GET /public/..\\admin \n GET /public/..%5cadmin \n"
        "GET /public/%252e%252e/admin \n GET /public/%2 \n GET /public/%00 \n GET /public/%c0%ae%c0%ae/admin \n"
        "GET http://web/public \n GET public \n GET * \n GET /public/a%2500 \n GET /public/x%255c..",
    ),
    "a prefix with a slash": (
        NET_POLICY, [allow(http=http(prefix="/pub/"))], "GET /pub/ \n GET /pub/a \n GET /pub//a",
        "GET /pub \n GET /public",
    ),
    "the root as a prefix": (NET_POLICY, [allow(http=http(prefix="/"))], "GET / \n GET /a/b", "OPTIONS * \n GET a"),
    "paths and methods": (
        NET_POLICY, [allow(http=http(["GET"], exact=["/a", "/b"], prefix="/c"))],
        "GET /a \n GET /b \n GET /c/d",
        "POST /a \n GET /d \n POST /c \n GET /a/b",
    ),
    "two rules": (
        NET_POLICY, [allow(http=http(["GET"], prefix="/")), allow(http=http(["POST"], exact="/orders"))],
        "GET /orders \n GET /x \n POST /orders",
        "POST /x \n PUT /orders",
    ),
    "a path with a space": (
        NET_POLICY, [allow(http=http(exact="/a b"))], "GET /a%20b", "GET /a+b \n GET /ab \n GET /a%2520b",
    ),
    "an address": (
        NET_POLICY, [allow(source={"nets": ["10.0.0.0/31"]})], "GET / from web",
        "GET / from cart \n GET / from stranger",
    ),
    "networks and http": (
        NET_POLICY, [allow(source={"nets": ["10.0.0.0/24"]}, http=http(["GET"]))],
        "GET / from cart \n GET / from count \n GET / from mapped",
        "GET / from stranger \n POST / from cart \n GET / from cart6",
    ),
    "not of these networks": (
        NET_POLICY, [allow(source={"notNets": ["192.0.2.0/24"]})], "GET / from cart",
        "GET / from partner \n GET / from cart6",
    ),
    "six": (
        NET_POLICY, [{**allow(http=http(prefix="/a")), "ipVersion": 6}],
        "GET /a from cart6",
        "GET /a from cart \n GET /b from cart6 \n GET /a from mapped",
    ),
    "ports": (
        NET_POLICY, [allow(destination={"ports": [80, "8000:8010"]})],
        "GET / to 80 \n GET / to 8000 \n GET / to 8010",
        "GET / to 81 \n GET / to 8011 \n - - to 7999",
    ),
    "not these ports": (NET_POLICY, [allow(destination={"notPorts": [22]})], "GET / to 80", "- - to 22"),
    "a named port": (
        NET_POLICY, [allow(destination={"ports": ["http"]}, http=http(["GET"]))],
        "GET / to 8080",
        "GET / to 80 \n POST / to 8080 \n - - to 8080 udp",
    ),
    "udp": (NET_POLICY, [{"action": "Allow", "protocol": "UDP"}], "- - udp", "- - \n GET /"),
    "not udp": (NET_POLICY, [{"action": "Allow", "notProtocol": "UDP"}], "GET / \n - -", "- - udp"),
    "icmp": (NET_POLICY, [{"action": "Allow", "protocol": "ICMP", "icmp": {"type": 8}}], "", "GET / \n - - udp"),
    "a selector": (
        NET_POLICY, [allow(source={"selector": "app == 'cart'"}, http=http(["GET"]))],
        "GET / from cart \n GET / from cart as shop/cart \n GET / from cart6 \n GET / from mapped as shop/plain",
        "GET / from count \n GET / from stranger \n POST / from cart \n GET / from cart as stock/count \n"
        "GET / from cart as lost/x \n GET / from cart as spiffe://x/sa/cart \n GET / from count as shop/cart",
    ),
    "not a selector": (
        GLOBAL, [allow(source={"notSelector": "app == 'cart'"})],
        "GET / from count \n GET / from stranger \n GET / from count as stock/count",
        "GET / from cart \n GET / from cart6",
    ),
    "a selector anywhere": (
        GLOBAL, [allow(source={"selector": "has(app)"})],
        "GET / from cart \n GET / from count \n GET / from count as stock/count \n GET / from cart as lost/x",
        "GET / from stranger \n GET / from partner",
    ),
    "a network set": (
        GLOBAL, [allow(source={"selector": "role == 'partner'"}, http=http(prefix="/api"))],
        "GET /api from partner \n GET /api/x from partner",
        "GET / from partner \n GET /api from cart \n GET /api from stranger \n GET /api/../x from partner",
    ),
    "namespaces": (
        NET_POLICY, [allow(source={"namespaceSelector": "team == 'b'"})],
        "GET / from count \n GET / from count as stock/count \n GET / from count as stock/any",
        "GET / from cart \n GET / from stranger \n GET / from count as shop/cart \n GET / from count as lost/x \n"
        "GET / from count as gone/x",
    ),
    "all namespaces": (
        NET_POLICY, [allow(source={"namespaceSelector": "all()", "selector": "has(app)"})],
        "GET / from cart as shop/cart \n GET / from count as stock/count \n GET / from count as lost/x",
        "GET / from stranger as shop/cart \n GET / from cart as gone/x",
    ),
    "no namespace": (
        NET_POLICY, [allow(source={"namespaceSelector": "global()", "selector": "role == 'partner'"})],
        "GET / from partner",
        "GET / from cart \n GET / from partner as shop/cart",
    ),
    "an account": (
        NET_POLICY, [allow(source={"serviceAccounts": {"names": ["cart"]}}, http=http(["GET"]))],
        "GET / from cart \n GET / from cart as shop/cart",
        "GET / from cart as shop/plain \n GET / from count \n GET / from cart as stock/cart \n POST / from cart \n"
        "GET / from cart as spiffe://cluster.local/ns/shop/sa/cart/x \n GET / from cart as spiffe:///ns/shop/sa/cart \n"
        "GET / from cart as cart",
    ),
    "two accounts": (
        GLOBAL, [allow(source={"serviceAccounts": {"names": ["cart", "count"]}})],
        "GET / from cart as shop/cart \n GET / from count as stock/count \n GET / from count as stock/cart",
        "GET / from cart as shop/plain \n GET / from stranger \n GET / from stranger as shop/cart",
    ),
    "accounts' labels": (
        GLOBAL, [allow(source={"serviceAccounts": {"selector": "tier == 'front'"}})],
        "GET / from cart \n GET / from cart as shop/cart",
        "GET / from cart as shop/plain \n GET / from cart as stock/count \n GET / from cart as shop/gone \n"
        "GET / from count",
    ),
    "accounts without a label": (
        GLOBAL, [allow(source={"serviceAccounts": {"selector": "!has(tier)"}})],
        "",
        "GET / from cart as shop/cart \n GET / from cart \n GET / from cart as shop/gone",
    ),
    "names and labels": (
        GLOBAL, [allow(source={"serviceAccounts": {"names": ["cart"], "selector": "tier == 'front'"}})],
        "GET / from cart as shop/cart",
        "GET / from cart as stock/cart \n GET / from cart as stock/count",
    ),
    "accounts of namespaces": (
        NET_POLICY,
        [allow(source={"namespaceSelector": "team == 'b'", "serviceAccounts": {"names": ["count"]}})],
        "GET / from count as stock/count \n GET / from count",
        "GET / from count as shop/count \n GET / from cart as shop/cart \n GET / from count as stock/cart",
    ),
    "a refusal first": (
        NET_POLICY, [{"action": "Deny", "source": {"nets": ["10.0.0.3/32"]}}, allow(http=http(["GET"]))],
        "GET / from cart",
        "GET / from count \n POST / from cart",
    ),
    "a log before": (NET_POLICY, [{"action": "Log"}, allow(http=http(["GET"]))], "GET /", "POST /"),
    "passed on": (
        NET_POLICY, [{"action": "Pass", "source": {"nets": ["10.0.0.0/24"]}}, allow(http=http(["GET"]))],
        "POST / from cart \n GET / from stranger",
        "POST / from stranger",
    ),
    "nothing": (NET_POLICY, [], "", "GET / \n - - \n - - udp"),
    "only the profile": (PROFILE, [allow(http=http(["GET"], prefix="/"))], "GET / \n - -", "POST / \n GET x"),
    "the profile refuses": (PROFILE, [{"action": "Deny"}], "", "GET / \n - -"),
}  # fmt: skip
