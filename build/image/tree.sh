#!/bin/bash
# What the image has beside the bundle itself: links and directories by the names of upstream's image.
#
#   build/image/tree.sh ROOT
set -euo pipefail
root=$1
mkdir -p "$root"
ln -s /opt/cni/bin/install-cni.sh "$root/install-cni.sh"
# only here, never in a bundle: on a host this name would hide the install of coreutils
mkdir -p "$root/opt/cni/bin"
ln -s calico-install "$root/opt/cni/bin/install"
# where manifests of upstream's images look for them
mkdir -p "$root/usr/bin"
for program in calico-node calicoctl calico-typha; do ln -s "/opt/cni/bin/$program" "$root/usr/bin/$program"; done
ln -s calicoctl "$root/usr/bin/kubectl-calico"
# the checker of requests, as manifests of upstream's name it and its probes
ln -s /opt/cni/bin/calico-alp "$root/dikastes"
printf '#!/bin/sh\nexec /opt/cni/bin/calico-alp ready\n' >"$root/healthz"
chmod 755 "$root/healthz"
# the last as in images with one program for everything
for name in kube-controllers check-status wrapper calico; do
  ln -s /opt/cni/bin/calico-kube-controllers "$root/usr/bin/$name"
done
# for the controllers' health file, whichever user they run as
mkdir -m 1777 "$root/status"
# runit's names, as used by runbooks and manifests of upstream's image
mkdir -p "$root/usr/sbin" "$root/usr/local/bin" # /sbin is a link
script() { printf '#!/bin/sh\nexec /opt/cni/bin/calico-node %s\n' "$2" >"$root/$1" && chmod 755 "$root/$1"; }
script usr/sbin/start_runit run
# runit's own where it supervises services; the image itself has no runit
cat >"$root/usr/local/bin/sv" <<'SCRIPT'
#!/bin/sh
services=${SVDIR:-/etc/service/enabled}
for ok in "$services"/*/supervise/ok; do
  if [ -p "$ok" ] && [ -x /usr/bin/sv ]; then
    export SVDIR="$services"
    exec /usr/bin/sv "$@"
  fi
done
exec /opt/cni/bin/calico-node sv "$@"
SCRIPT
chmod 755 "$root/usr/local/bin/sv"
printf '#!/bin/sh\nexec /usr/local/bin/sv restart confd\n' >"$root/usr/local/bin/restart-calico-confd"
chmod 755 "$root/usr/local/bin/restart-calico-confd"
for service in felix confd bird bird6 allocate-tunnel-addrs monitor-addresses monitor-token node-status-reporter \
  node-services cni; do
  mkdir -p "$root/etc/service/enabled/$service"
done
# for a runit of one's own: the parts one at a time; calico-node run needs none of them
service() { mkdir -p "$root/etc/service/available/$1" && printf '#!/bin/sh\nexec 2>&1\nexec %s\n' "$2" >"$root/etc/service/available/$1/run" && chmod 755 "$root/etc/service/available/$1/run"; }
for service in felix confd allocate-tunnel-addrs monitor-addresses monitor-token; do
  service "$service" "/opt/cni/bin/calico-node -$service"
done
service node-status-reporter "/opt/cni/bin/calico-node -status-reporter"
service cni "/opt/cni/bin/calico-node -cni-server"
# shellcheck disable=SC2016 # for the script that is written
service bird 'bird -f -c "${CALICO_BIRD_CONFIG_DIR:-/etc/calico/confd/config}/bird.cfg" -s "${CALICO_RUN_DIR:-/var/run/calico}/bird.ctl"'
# one BIRD 2 speaks both families
service bird6 'sleep infinity'
# sets the node up and selects by the environment what runsvdir is to run
cat >"$root/etc/rc.local" <<'SCRIPT'
#!/bin/sh
/opt/cni/bin/calico-node -hostpath-init -best-effort
/opt/cni/bin/calico-node -startup -allocate-tunnel-addrs-run-once -best-effort || exit

available=/etc/service/available
enabled=${SVDIR:-/etc/service/enabled}
lower() { printf %s "$1" | tr '[:upper:]' '[:lower:]' | tr -d '[:space:]'; }
is() { case $(lower "$1") in true | t | 1 | yes | y | on | enabled) ;; *) return 1 ;; esac; }

wanted="allocate-tunnel-addrs monitor-addresses node-status-reporter cni"
is "$CALICO_DISABLE_FELIX" || wanted="$wanted felix"
[ "$(lower "$CALICO_MANAGE_CNI")" = false ] || wanted="$wanted monitor-token"
backend=$(lower "${CALICO_NETWORKING_BACKEND:-bird}")
case $(lower "$CALICO_NETWORKING") in '') ;; false) backend=none ;; *) backend=bird ;; esac
[ "$backend" != bird ] || wanted="$wanted confd bird bird6"

# what runsv has left of a service, unless it runs or somebody's link leads elsewhere
clear() {
  if [ -d "$1/supervise" ] && [ ! -L "$1/supervise" ]; then
    flock -n "$1/supervise/lock" sh -c 'cd "$0" && rm -f control lock ok pid pid.new stat stat.new status status.new' "$1/supervise"
    rmdir "$1/supervise"
  fi
  rmdir "$1"
}

mkdir -p "$enabled"
for service in "$available"/*; do
  name=${service##*/}
  case " $wanted " in
    *" $name "*) mkdir -p "$enabled/$name" && cp -p "$service/run" "$enabled/$name/run" || exit ;;
    *) rm -f "$enabled/$name/run" && { [ -L "$enabled/$name" ] || clear "$enabled/$name" 2>/dev/null || :; } ;;
  esac
done
rmdir "$enabled/node-services" 2>/dev/null || :
SCRIPT
chmod 755 "$root/etc/rc.local"
