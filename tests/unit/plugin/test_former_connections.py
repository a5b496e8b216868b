"""The list of addresses whose connections may be there: what cannot be read is not taken for no agent."""

from __future__ import annotations

import errno
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.directories import POLICED_ADDRESSES
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.former_connections import remove_former_connections

ADDRESS = ip_address("10.65.0.2")


class Unreadable(Files):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def read_bytes(self, path: str) -> bytes:
        raise OSError(self.number, "no", path)


def services(files: Files, run_dir: Path) -> Services:
    return Services({"CALICO_RUN_DIR": str(run_dir)}, files=files)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ENOTDIR, errno.ELOOP])
def test_a_list_that_cannot_be_read_fails_the_call(tmp_path: Path, number: int) -> None:
    with pytest.raises(KernelError) as failed:
        remove_former_connections([ADDRESS], services(Unreadable(number), tmp_path), Deadline.after(1))
    assert failed.value.errno == number
    assert str(failed.value.message).startswith(f"cannot use 10.65.0.2: {tmp_path}/{POLICED_ADDRESSES} cannot be read:")


def test_what_is_no_file_fails_the_call(tmp_path: Path) -> None:
    (tmp_path / POLICED_ADDRESSES).mkdir()
    with pytest.raises(KernelError, match="cannot be read"):
        remove_former_connections([ADDRESS], services(Files(), tmp_path), Deadline.after(1))


def test_where_no_agent_polices_nothing_is_done(tmp_path: Path) -> None:
    for run_dir in (tmp_path, tmp_path / "none"):
        remove_former_connections([ADDRESS], services(Files(), run_dir), Deadline.after(1))


def test_without_addresses_the_list_does_not_matter(tmp_path: Path) -> None:
    remove_former_connections([], services(Unreadable(errno.EIO), tmp_path), Deadline.after(1))
