#init
# shellcheck shell=bash
# Process 1 of the machine of tests/kernels/test_reboots.py, until systemd takes its place: the packets from outside begin
# before it. What systemd's machine writes stays on /dev/vdb.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CNI_CALICO_MACHINE=1
for each in /run /tmp; do mount -t tmpfs tmpfs $each; done
modprobe ext4
mkdir -p /state
echo "machine: $(uname -r) starts"
mount /dev/vdb /state
ip netns add outside
cd /product || exit
ip netns exec outside python3 -m tests.e2e.systemd.container /run/sending &
until [ -e /run/sending ]; do sleep 0.1; done
exec bash tests/e2e/systemd/boot.sh /state /product/dist/bin outside
