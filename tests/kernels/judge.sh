#!/bin/bash
# In the machine of tests/kernels/test_reboots.py, once it has started: writes down what has arrived at the container, and
# starts the machine again, in order or (every second time) as if its power went. The first time it sets it up; the last
# time, when /srv/boots has REBOOTS lines, the boot table is not there.
#
#   judge.sh REBOOTS ALLOWED FORBIDDEN
#   judge.sh down FORBIDDEN            while it goes down: the container is still there
arrived() { ip netns exec c1 nft list table ip seen | sed -n "s/.*dport $1 counter packets \([0-9]*\).*/\1/p"; }
at_once() { # b: starts again, o: off
  sync
  echo "$1" >/proc/sysrq-trigger
  sleep infinity
}
keep_journal() { journalctl -b -o short-monotonic -u calico-boot-table -u calico-node -u container >"/srv/journal.$1"; }
end() {
  mkdir -p /results
  cp /srv/boots /srv/down /srv/journal.* /results
  echo "$1" >/results/status
  tar cf /dev/vda -C /results .
  at_once o
}
if [ "$1" = down ]; then
  echo "down $(arrived "$2")" >>/srv/down
  exec sync
fi
if [ ! -e /srv/boots ]; then
  /opt/cni/bin/calicoctl node init --datastore local --cidr 10.65.0.0/16 || end 1
  /opt/cni/bin/calicoctl apply -f /srv/policy.yaml || end 1
  systemctl enable container
  touch /srv/boots /srv/down
  at_once b
fi
for ((tries = 0; tries < 300; tries++)); do
  [ "0$(arrived "$2")" -gt 100 ] && break
  sleep 0.2
done
echo "$(arrived "$2") $(arrived "$3") $(systemctl is-active calico-node)" | tee -a /srv/boots
boots=$(wc -l </srv/boots)
keep_journal "$boots"
if [ "$tries" = 300 ]; then
  cat "/srv/journal.$boots"
  ip addr
  ip route
  end 1
fi
if [ "$boots" -gt "$1" ]; then end 0; fi
if [ "$boots" = "$1" ]; then systemctl disable calico-boot-table; fi
if [ $((boots % 2)) = 0 ]; then at_once b; fi
systemctl --no-block reboot
