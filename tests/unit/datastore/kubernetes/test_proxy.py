"""Whether a proxy stands before an API server, and what its address is."""

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.login import read_login
from cni_calico.datastore.kubernetes.proxy import is_direct, parse_proxy
from cni_calico.datastore.kubernetes.trust import server_of
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.model.access import KubernetesAccess, parse_proxy_variables
from tests.deadlines import SOON
from tests.fakes.connect_proxy import connect_proxy
from tests.fakes.scripted_http import scripted


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("localhost", "", True),
        ("LOCALHOST", "", True),
        ("127.0.0.9", "", True),
        ("::1", "", True),
        ("localhost.example", "", False),
        ("10.96.0.1", "", False),
        ("kube.example", "*", True),
        ("kube.example", "other, * ", True),
        ("kube.example", "kube.example", True),
        ("KUBE.example", "Kube.Example", True),
        ("a.kube.example", "kube.example", True),
        ("akube.example", "kube.example", False),
        ("kube.example", ".kube.example", False),
        ("a.kube.example", ".kube.example", True),
        ("kube.example", "*.kube.example", False),
        ("a.kube.example", "*.kube.example", True),
        ("kube.example", "kube.example:6443", True),
        ("kube.example", "kube.example:443", False),
        ("kube.example", ",,x,", False),
        ("10.96.0.1", "10.96.0.1", True),
        ("10.96.0.1", "10.96.0.1:6443", True),
        ("10.96.0.1", "10.96.0.1:443", False),
        ("10.96.0.1", "10.96.0.2", False),
        ("10.96.0.1", "10.96.0.0/12", True),
        ("10.96.0.1", "10.112.0.0/12", False),
        ("10.96.0.1", "0.1", False),
        ("10.96.0.1", "fd00::/8", False),
        ("10.96.0.1", "nonsense/8", False),
        ("kube.example", "10.96.0.0/12", False),
        ("fd00::1", "fd00::/8", True),
        ("fd00::1", "[fd00::1]:6443", True),
        ("fd00::1", "[fd00::1]:443", False),
        ("fd00::1", "fd00::1", True),
        ("fd00::1", "FD00:0::1", True),
    ],
)
def test_what_no_proxy_names_is_reached_directly(host, no_proxy, direct):
    assert is_direct(host, 6443, no_proxy) is direct


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://proxy:3128", ("proxy", 3128, "")),
        ("proxy:3128", ("proxy", 3128, "")),
        ("http://proxy/", ("proxy", 80, "")),
        ("HTTP://[fd00::1]:3128", ("fd00::1", 3128, "")),
        ("http://me:se%40cret@proxy:3128/", ("proxy", 3128, "me:se@cret")),
    ],
)
def test_addresses_of_proxies(text, parts):
    assert parse_proxy(text) == parts


@pytest.mark.parametrize("text", ["socks5://me:secret@proxy:1", "https://me:secret@proxy", "http://", "a:b", "a:70000"])
def test_what_is_no_http_proxy_is_refused_without_its_password(text):
    with pytest.raises(DatastoreDenied, match="cannot use the proxy") as caught:
        parse_proxy(text)
    assert "secret" not in str(caught.value)


def test_names_in_capitals_win():
    both = {"HTTPS_PROXY": "a", "https_proxy": "b", "no_proxy": "c"}
    assert parse_proxy_variables(both) == ("a", "c")
    assert parse_proxy_variables({"https_proxy": "b", "NO_PROXY": "d", "HTTP_PROXY": "e"}) == ("b", "d")
    assert parse_proxy_variables({}) == ("", "")


def proxy_of(url, no_proxy=""):
    access = KubernetesAccess(api_root=url, token="t", https_proxy="http://proxy:3128", no_proxy=no_proxy)
    return server_of(read_login(access, SOON)).proxy


def test_the_environments_proxy_counts_for_https_alone():
    assert proxy_of("https://kube.example:6443") == ("proxy", 3128)
    assert proxy_of("https://kube.example:6443", "kube.example") is None
    assert proxy_of("https://127.0.0.1:6443") is None
    assert proxy_of("http://kube.example:8080") is None


KUBECONFIG = (
    '{"clusters":[{"name":"c","cluster":{"server":"https://kube.example","proxy-url":"http://of-the-file:1"}}],'
    '"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}'
)


def test_a_kubeconfigs_proxy_wins_also_over_no_proxy(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    access = KubernetesAccess(kubeconfig=str(path), https_proxy="http://proxy:3128", no_proxy="*")
    assert server_of(read_login(access, SOON)).proxy == ("of-the-file", 1)


def kubeconfig_before(path, server, proxy_url):
    text = KUBECONFIG.replace("https://kube.example", server).replace("http://of-the-file:1", proxy_url)
    path.write_text(text)
    return KubernetesAPI(KubernetesAccess(kubeconfig=str(path)))


def test_requests_go_through_and_the_proxy_is_told_who_asks(tmp_path):
    with scripted(always=(200, {"kind": "Pod"})) as server, connect_proxy(("127.0.0.1", server.port)) as proxy:
        login = proxy.url.replace("http://", "http://me:secret@")
        api = kubeconfig_before(tmp_path / "kubeconfig", "http://kube.example:8080", login)
        assert api.get("/api/v1/pods/x", Deadline.after(5), "read pod x") == {"kind": "Pod"}
        api.close()
        assert proxy.asked == ["kube.example:8080"]
        assert proxy.logins == ["Basic bWU6c2VjcmV0"]
        [(_, _, headers, _)] = server.requests
        assert "proxy-authorization" not in {name.lower() for name in headers}


def test_a_proxy_that_refuses_is_the_cause(tmp_path):
    with connect_proxy(("127.0.0.1", 1)) as proxy:
        proxy.status = "407 Proxy Authentication Required"
        api = kubeconfig_before(tmp_path / "kubeconfig", "http://kube.example:8080", proxy.url)
        with pytest.raises(DatastoreUnavailable, match=r"cannot read pod x: .*the proxy answered CONNECT with 407"):
            api.get("/api/v1/pods/x", Deadline.after(1), "read pod x")
        api.close()
