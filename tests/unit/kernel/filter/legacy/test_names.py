"""Names in legacy iptables and among IP sets: what is kept of them."""

from __future__ import annotations

from cni_calico.kernel.filter.legacy.names import chain_name, set_name


def test_little_is_kept_of_names_that_do_not_come_again() -> None:
    for number in range(10_000):
        chain_name(f"host-in-h-{number:024x}")
        set_name(f"s-app-{number:024x}", 4)
    kept = chain_name.cache_info().currsize, set_name.cache_info().currsize
    chain_name.cache_clear()
    set_name.cache_clear()
    assert max(kept) <= 4096
