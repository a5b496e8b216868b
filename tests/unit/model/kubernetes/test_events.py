"""Events of Kubernetes."""

from cni_calico.model.kubernetes.events import warning_event

POD = {"kind": "Pod", "namespace": "space", "name": "p" * 253, "uid": "u1"}


def test_the_same_text_about_the_same_object_has_the_same_name() -> None:
    first, again = (warning_event(POD, "Reason", "text", now, "calico-node") for now in ("a", "b"))
    others = (({**POD, "uid": "u2"}, "text"), (POD, "other"))
    names = [warning_event(who, "Reason", text, "a", "calico-node")["metadata"]["name"] for who, text in others]
    assert first["metadata"] == again["metadata"] and first["metadata"]["name"] not in names
    assert first["metadata"]["namespace"] == "space" and len(first["metadata"]["name"]) <= 253
    assert first["involvedObject"] == {"apiVersion": "v1", **POD} and first["type"] == "Warning"
