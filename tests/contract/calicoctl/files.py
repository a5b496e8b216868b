"""Files for calicoctl: its configuration, and records."""

HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n"


def config_of(address):
    kind, _, rest = address.partition(":")
    if kind == "local":
        return f"  datastoreType: local\n  datastorePath: {rest}\n"
    if kind == "etcd":
        return f"  datastoreType: etcdv3\n  etcdEndpoints: {rest}\n"
    url, ca, group = rest.split(" ")
    access = f"  k8sAPIEndpoint: {url}\n  k8sAPIToken: admin-token\n  k8sCAFile: {ca}\n"
    return f"  datastoreType: kubernetes\n{access}  calicoAPIGroup: {group}\n"


def pool(name, cidr, **spec):
    metadata = {"name": name, "labels": {"team": "net"}, "annotations": {"note": "mine"}}
    return {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": metadata, "spec": {"cidr": cidr} | spec}
