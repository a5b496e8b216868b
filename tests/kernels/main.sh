#!/bin/bash
# Process 1 in the root of a machine of tests/kernels: runs /vm-command and hands /results back through the machine's
# disk. A command that begins with "#init" takes its place.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=~root LANG=C.UTF-8
read -r first </vm-command
if [ "$first" = "#init" ]; then exec bash /vm-command; fi
for each in /run /tmp; do mount -t tmpfs tmpfs $each; done
mkdir -p /dev/pts /dev/shm /run/netns /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sfn /proc/self/fd /dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -sfn "/proc/self/fd/${n%%:*}" "/dev/${n##*:}"; done
# where the tests look for it
export CNI_CALICO_MACHINE=1 LAB_CACHE=/lab PYTHONDONTWRITEBYTECODE=1
mkdir -p /lab/bin
ln -s /usr/bin/etcd /lab/bin/etcd
ip link set lo up
hostname machine
echo "machine: $(uname -r), up after $(cut -d ' ' -f 1 /proc/uptime) s"
cd /product || exit
{
  bash /vm-command
  echo $? >/results/status
} 2>&1 | tee /results/output
dmesg >/results/dmesg 2>&1
echo "machine: status $(cat /results/status), $(cut -d ' ' -f 1 /proc/uptime) s"
tar cf /dev/vda -C /results .
sync
echo o >/proc/sysrq-trigger
read -r -t 30 <>/dev/console # until it is off
