# shellcheck shell=bash
# Sourced: Debian packages, installed only when missing.

# Prints those of the named packages that are not installed; fails if there are any.
debian_missing() {
  local p missing=0
  for p in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" != installed ]; then
      echo "$p"
      missing=1
    fi
  done
  return "$missing"
}

# Installs those of the named packages that are not installed.
debian_install() {
  local missing
  mapfile -t missing < <(debian_missing "$@")
  [ "${#missing[@]}" != 0 ] || return 0
  echo "installing Debian packages: ${missing[*]}"
  if ! debian_apt install "${missing[@]}" 2>/dev/null; then
    # the package lists are missing or older than the archive
    debian_apt update && debian_apt install "${missing[@]}"
  fi
}

debian_apt() {
  local log
  log=$(mktemp)
  # no daemon is started by its installation: BIRD and friends are run by the tests themselves
  if ! RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 \
    -o APT::Install-Recommends=false -o Dpkg::Options::=--force-confold "$@" </dev/null >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
