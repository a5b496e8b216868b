#!/bin/bash
# A machine that systemd runs, on an overlay of this host's root; in namespaces of its own (tests/e2e/systemd/machine.py).
#
#   boot.sh DIR BUNDLE OUTSIDE [LOWER]
#
#   DIR      what the machine writes: it stays from one start to the next
#   BUNDLE   becomes its /opt/cni/bin, in which it may write without changing it; "": nothing does
#   OUTSIDE  the network namespace at the other end of its network card
#   LOWER    the root of another Debian, in the place of this host's
#
# In a machine of tests/kernels it is no container: it has that kernel's modules, and they are loaded from its root.
set -eu
dir=$1 bundle=$2 outside=$3 lower=${4:-/}
mount --make-rprivate /
ip link set lo up
ip -n "$outside" link del wire 2>/dev/null || :  # of the start before
ip link add eth0 type veth peer name wire netns "$outside"
ip addr add 192.0.2.10/24 dev eth0
ip link set eth0 up
ip -n "$outside" addr add 192.0.2.1/24 dev wire
ip -n "$outside" link set wire up
ip -n "$outside" route add 10.65.0.0/16 via 192.0.2.10
[ -e "$dir/upper" ] && was_there=1 || was_there=
mkdir -p "$dir/upper" "$dir/work" "$dir/root"
[ -z "$bundle" ] || mkdir -p "$dir/upper/opt/cni/bin"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
if [ -n "$bundle" ]; then
  mkdir -p "$dir/bin" "$dir/bin.work"
  mount -t overlay overlay -o "lowerdir=$bundle,upperdir=$dir/bin,workdir=$dir/bin.work" "$dir/root/opt/cni/bin"
fi
cd "$dir/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
for scratch in run tmp; do mount -t tmpfs tmpfs $scratch; done
if [ -z "$was_there" ]; then  # the host's own services, and what else ran here, are none of the test's business
  ln -sfn /dev/null etc/systemd/system/systemd-binfmt.service # the formats of programs are the host's, too
  rm -rf etc/systemd/system/*.wants/* etc/calico etc/cni var/lib/calico var/log/calico
fi
if [ -n "${CNI_CALICO_MACHINE:-}" ]; then mount --bind /usr/lib/modules usr/lib/modules; else inside=container=lab; fi
mkdir -p run/before
pivot_root . run/before
umount -l /run/before
exec env -i ${inside:+"$inside"} PATH="$PATH" /lib/systemd/systemd --system --unit=multi-user.target
