"""The table of rights on etcd: made of our keys, without anything superfluous, and printed so that shells read it."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
import yaml

from cni_calico.ctl.datastore.etcd_roles import (
    AGENT,
    CALICOCTL,
    CONTROLLERS,
    JANITOR,
    PLUGIN,
    Right,
    as_value,
    desired_roles,
    desired_users,
    least,
    render_script,
)
from cni_calico.ctl.main import run
from cni_calico.model.keys import EverythingList, ResourceKey, ResourceList, etcd_path, etcd_prefix
from cni_calico.policy.decode import KINDS

ROLES = desired_roles(profiles=True)


def may(role: str, key: str, *, write: bool = False) -> bool:
    wanted = Right(key, False, write)
    return any(right.covers(wanted) for right in ROLES[role])


def test_what_includes_what():
    everything, one = Right("/a/", True, True), Right("/a/b", False, False)
    assert everything.covers(one) and not one.covers(everything)
    assert not Right("/a/", True, False).covers(Right("/a/b", False, True)), "reading is not writing"
    assert not Right("/a/b", False, True).covers(Right("/a/b", True, False)), "one key is not those behind it"
    assert least([one, everything, one]) == (everything,)


def test_no_role_has_more_than_its_lists_of_keys():
    for role, rights in ROLES.items():
        assert rights == least(rights) and len(set(rights)) == len(rights), role
        for right in rights:
            assert right.key.startswith(("/calico/", "compact_rev_key")), role
            if role != CALICOCTL:
                assert right.key.count("/") > 2 or right.key == "compact_rev_key", "never a whole tree"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_agent_reads_what_policies_are_made_of(kind):
    assert Right(etcd_prefix(ResourceList(kind)), True, False) in ROLES[AGENT] or may(
        AGENT, etcd_prefix(ResourceList(kind))
    )


@pytest.mark.parametrize("kind", ["GlobalNetworkPolicy", "NetworkPolicy", "Profile", "GlobalNetworkSet", "IPPool"])
def test_a_node_writes_nothing_that_decides_about_others(kind):
    key = etcd_path(ResourceKey(kind, "any", "space" if kind == "NetworkPolicy" else ""))
    assert not may(AGENT, key, write=True)
    assert may(CALICOCTL, key, write=True)


def test_only_the_plugin_without_kubernetes_writes_profiles():
    pods_only = desired_roles(profiles=False)
    assert may(PLUGIN, etcd_path(ResourceKey("Profile", "calnet")), write=True)
    assert not any("profiles/" in right.key for right in pods_only[PLUGIN])
    assert {role: rights for role, rights in pods_only.items() if role != PLUGIN} == {
        role: rights for role, rights in ROLES.items() if role != PLUGIN
    }


def test_calicoctl_reads_everything():
    assert Right(etcd_prefix(EverythingList()), True, False) in ROLES[CALICOCTL]


def test_users():
    named = {PLUGIN: "node", AGENT: "node", CALICOCTL: "admin", CONTROLLERS: "boss"}
    assert desired_users(named, agents_clean=False) == {
        "node": (PLUGIN, AGENT),
        "admin": (CALICOCTL,),
        "boss": (CONTROLLERS,),
    }
    assert desired_users({AGENT: "a"}, agents_clean=True) == {"a": (AGENT, JANITOR)}


def test_the_script_is_what_the_table_says(tmp_path):
    """Run by a shell, with a program in the place of etcdctl that notes its words."""
    notes, program = tmp_path / "notes", tmp_path / "etcdctl"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{notes}\n[ "$2" != get ]\n')
    program.chmod(0o755)
    users = desired_users({PLUGIN: "it's a $user", AGENT: "b"}, agents_clean=True)
    script = render_script({PLUGIN: ROLES[PLUGIN]}, users)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh"], input=script, env=environ, text=True, check=True, capture_output=True, timeout=60)
    said = notes.read_text().splitlines()
    grants = [
        f"role grant-permission {'--prefix=true ' if r.is_prefix else ''}{PLUGIN} {r.type} {r.key}"
        for r in ROLES[PLUGIN]
    ]
    assert [line for line in said if "grant-permission" in line] == grants
    assert f"role add {PLUGIN}" in said
    assert "user add it's a $user --no-password" in said and f"user grant-role it's a $user {PLUGIN}" in said
    assert f"user grant-role b {JANITOR}" in said


def test_passwords_are_never_arguments(tmp_path):
    script = render_script({}, {"u": ("r",)}, "/a directory")
    assert f"passwords={shlex.quote('/a directory')}" in script and '<"$passwords/$1"' in script


@pytest.mark.parametrize(("output", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_formats(capsys, output, parse):
    assert run(["datastore", "etcd-roles", "-o", output, "--agent", "x"], {}) == 0
    found = parse(capsys.readouterr().out)
    assert found["users"][1] == {"name": "x", "roles": [AGENT]}
    assert [role["name"] for role in found["roles"]] == [PLUGIN, AGENT, CONTROLLERS, CALICOCTL]
    without = {name: rights for name, rights in ROLES.items() if name != JANITOR}
    assert found["roles"] == as_value(without, {})["roles"]


def test_a_name_that_cannot_be_a_user(capsys):
    for name in ("", "-x", "a/b", "a\nb"):
        assert run(["datastore", "etcd-roles", f"--agent={name}"], {}) == 1
        assert "cannot be the name of a user" in capsys.readouterr().err


def test_without_controllers_the_agents_clean_up(capsys):
    assert run(["datastore", "etcd-roles", "--without-controllers"], {}) == 0
    script = capsys.readouterr().out
    assert f"has {AGENT} {JANITOR}\n" in script and CONTROLLERS not in script
