"""What libcni remembers of other networks' containers."""

import json

from cni_calico.plugin.ipam import remembered


def test_containers_of_other_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "RESULTS", str(tmp_path))
    for name, document in (
        ("a-c1-eth0", {"containerId": "c1", "networkName": "a"}),
        ("b-c2-eth0", {"containerId": "c2", "networkName": "b"}),
        ("a-c3-eth0", {"containerId": "c3"}),  # of a libcni that does not say it
        ("c4", 7),
    ):
        (tmp_path / name).write_text(json.dumps(document))
    (tmp_path / "bad").write_text("{")
    assert remembered.containers_of_other_networks("a") == {"c2", "c3"}
    monkeypatch.setattr(remembered, "RESULTS", str(tmp_path / "none"))
    assert remembered.containers_of_other_networks("a") == set()
