#init
# shellcheck shell=bash
# Process 1 of the machine of tests/kernels/test_reboots.py whose power goes while two nodes in it encrypt. What stays is on
# /dev/vdb, which is /state: the datastore, and what the nodes have below /var/lib/calico. Each one's /run/calico is new.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export CNI_CALICO_MACHINE=1 LAB_CACHE=/lab PYTHONDONTWRITEBYTECODE=1
for each in /run /tmp; do mount -t tmpfs tmpfs $each; done
mkdir -p /dev/pts /dev/shm /run/netns /run/lock /state
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sfn /proc/self/fd /dev/fd
modprobe ext4
mount /dev/vdb /state
ip link set lo up
cd /product || exit
for node in n1 n2; do
  mkdir -p /state/$node/run
  mount -t tmpfs tmpfs /state/$node/run
done
part=before
if [ -e /state/went ]; then part=after; fi
echo "machine: $(uname -r) starts, $part its power went"
python3 -m tests.kernels.encrypted_reboot $part /state 2>&1 | tee /results/output # "before" ends with the machine
echo "${PIPESTATUS[0]}" >/results/status
for node in n1 n2; do cp /state/$node/log.txt /results/log.$node; done
tar cf /dev/vda -C /results .
sync
echo o >/proc/sysrq-trigger
sleep infinity
