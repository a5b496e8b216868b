#!/bin/sh
# Installs a release of cni-calico on a host without Kubernetes, or takes it away.
#
#   install.sh [--version V] [--from DIR|URL] [--key FILE] [--sums-only] [--tarball] [--network podman|nerdctl] [--dry-run]
#   install.sh --uninstall [--yes] [--dry-run]
#
#   --version V   this version and no other; without it the one that --from has, or that this script belongs to
#   --from        a directory with the files of a release, or an address below which they are; without it where this script
#                 lies, if SHA256SUMS lies beside it, else where releases are published
#   --key FILE    the public key (PEM) that signed the release, instead of those in this script
#   --sums-only   without a signature: the sums show that nothing was damaged, not who made it
#   --tarball     the tarball, into /opt/cni-calico, even where there is dpkg
#   --network     also sets the host up with the embedded datastore and a network "calico": calicoctl node init
#   --uninstall   calicoctl node uninstall, then everything that was installed; refused while containers are attached
#   --yes         all the same, and takes their network away
#   --dry-run     checks everything, shows what would be done, changes nothing
#
# Where dpkg is, it installs the packages with apt, and what these depend on from the distribution; elsewhere the tarball,
# with links in /usr/local/bin (or /opt/bin, where /usr is read-only) and in /opt/cni/bin.
#
# Rule: whatever is refused is refused before anything is changed, and nothing is installed that was not checked first. A
# second run changes nothing. What it changed is written down before it is changed (/var/lib/cni-calico/installed), and
# --uninstall undoes that and no more. Units and network configurations are calicoctl's business. Files are safe on the disk
# when it ends; where it was cut off before that, the next run installs them again.
# Needs: awk cat chmod cp dirname find grep id ln mkdir mktemp mv readlink rm rmdir sed sha256sum sort sync tail tar tr uname; xz for the
# tarball; openssl for the signature; curl or wget for an address.
set -eu
umask 022

# A release fills these in.
VERSION=
RELEASES=
KEYS=

HOME_DIR=/opt/cni-calico
BIN=$HOME_DIR/bin
PLUGIN_DIR=/opt/cni/bin
NOTES_DIR=/var/lib/cni-calico
NOTES=$NOTES_DIR/installed
PACKAGES="cni-calico-bundle calico-cni calico-node calicoctl"

die() {
  echo "install.sh: $1" >&2
  exit "${2:-1}"
}
has() { command -v "$1" >/dev/null 2>&1; }
say() { echo "$*"; }

parse() {
  version='' from='' key='' sums_only='' tarball='' network='' uninstall='' yes='' dry=''
  while [ $# -gt 0 ]; do
    case $1 in
      --version | --from | --key | --network)
        [ $# -gt 1 ] && [ -n "$2" ] || die "$1 wants a value; install.sh --help" 2
        case $1 in
          --version) version=${2#v} ;;
          --from) from=${2%/} ;;
          --key) key=$2 ;;
          --network) network=$2 ;;
        esac
        shift
        ;;
      --sums-only) sums_only=1 ;;
      --tarball) tarball=1 ;;
      --uninstall) uninstall=1 ;;
      --yes) yes=1 ;;
      --dry-run) dry=1 ;;
      -h | --help)
        if [ -f "$0" ]; then sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p;}' "$0"; else say "options: the head of this script"; fi
        exit
        ;;
      *) die "unknown argument $1; install.sh --help" 2 ;;
    esac
    shift
  done
  case $network in '' | podman | nerdctl) ;; *) die "cannot set up a network for $network: known are podman, nerdctl" 2 ;; esac
  if [ -n "$uninstall" ] && [ -n "$version$from$key$sums_only$tarball$network" ]; then
    die "--uninstall takes only --yes and --dry-run" 2
  fi
  [ -n "$uninstall" ] || [ -z "$yes" ] || die "--yes belongs to --uninstall" 2
  case $version in *[!0-9A-Za-z.+~]*) die "no version: $version" 2 ;; esac
}

# -- what has to be so before anything is changed ---------------------------------------------------------------------

check_host() {
  [ "$(id -u)" = 0 ] || die "it needs root: it installs programs for all users, and services"
  case $(uname -s)-$(uname -m) in
    Linux-x86_64) arch=amd64 ;;
    Linux-aarch64 | Linux-arm64) arch=arm64 ;;
    *) die "there is no release for $(uname -s) on $(uname -m): only for Linux on x86_64 and aarch64" ;;
  esac
  [ -n "$uninstall" ] || [ -d /run/systemd/system ] ||
    die "this host is not run by systemd, which starts calico-node; docs/node.md says how to do without"
  for tool in sha256sum tar awk mktemp; do has "$tool" || die "there is no $tool here: install it first"; done
}

check_network() {
  [ -z "$network" ] || has "$network" || die "there is no $network here, for which --network would set the host up: install it first"
}

find_release() {
  here=
  if [ -z "$from" ] && [ -f "$0" ]; then
    here=$(cd "$(dirname "$0")" && pwd)
    [ ! -f "$here/SHA256SUMS" ] || from=$here
  fi
  if [ -z "$from" ]; then
    # an older release is signed, too
    version=${version:-$VERSION}
    [ -n "$RELEASES" ] || die "where is the release? --from names a directory with its files, or an address"
    from=$RELEASES/v$version
  fi
  case $from in
    http://* | https://*)
      if has curl; then fetcher=curl; elif has wget; then fetcher=wget; else
        die "neither curl nor wget is here to fetch $from: install one, or copy the files and name them with --from"
      fi
      ;;
    *)
      fetcher="cp"
      [ -d "$from" ] || die "there is no directory $from"
      ;;
  esac
}

# Prints nothing; fails if it cannot be had.
fetch() { # name
  case $fetcher in
    curl) curl -fsSL --retry 2 --connect-timeout 20 -o "$scratch/$1" "$from/$1" ;;
    wget) wget -q -T 20 -t 3 -O "$scratch/$1" "$from/$1" ;;
    cp) cp "$from/$1" "$scratch/$1" ;;
  esac 2>"$scratch/why" || die "cannot get $1 from $from: $(tr '\n' ' ' <"$scratch/why")"
}

check_signature() {
  fetch SHA256SUMS
  if [ -n "$sums_only" ]; then
    echo "install.sh: --sums-only: nobody vouches for these files" >&2
    return
  fi
  if [ -n "$key" ]; then
    cat "$key" >"$scratch/keys" 2>/dev/null || die "cannot read the key $key"
  else
    printf '%s\n' "$KEYS" >"$scratch/keys"
  fi
  grep -q 'BEGIN PUBLIC KEY' "$scratch/keys" ||
    die "no public key to check the release with: --key names the file of one, --sums-only does without a signature"
  has openssl || die "there is no openssl here to check the signature: install it; --sums-only does without a signature"
  fetch SHA256SUMS.sig
  awk -v to="$scratch/key." '/BEGIN PUBLIC KEY/ { n++ } n { print > (to n) }' "$scratch/keys"
  for one in "$scratch"/key.*; do
    if openssl dgst -sha256 -verify "$one" -signature "$scratch/SHA256SUMS.sig" "$scratch/SHA256SUMS" >/dev/null 2>&1; then return; fi
  done
  die "the signature of $from/SHA256SUMS is of none of the known keys: somebody may have changed the release. Nothing was installed"
}

# The version, from the sums: they are what is signed.
find_version() {
  found=$(sed -n "s/^[0-9a-f]\{64\}  cni-calico-\([0-9A-Za-z.+~]*\)-linux-$arch\.tar\.xz\$/\1/p" "$scratch/SHA256SUMS")
  case $found in
    '') die "$from/SHA256SUMS lists no release for $arch" ;;
    *[!0-9A-Za-z.+~]*) die "$from/SHA256SUMS lists several releases: name one with --version, in a directory of its own" ;;
  esac
  [ -z "$version" ] || [ "$version" = "$found" ] || die "$from has version $found, and not $version"
  version=$found
  tar_name=cni-calico-$version-linux-$arch.tar.xz
  tar_sum=$(sum_of "$tar_name")
}

sum_of() { awk -v name="$1" '$2 == name { print $1 }' "$scratch/SHA256SUMS"; } # name of a file

get_checked() { # name
  wanted=$(sum_of "$1")
  [ -n "$wanted" ] || die "$from/SHA256SUMS has no $1: the release is not complete"
  fetch "$1"
  echo "$wanted  $scratch/$1" | sha256sum -c >/dev/null 2>&1 ||
    die "$1 from $from is damaged: its sum is not the one in SHA256SUMS. Nothing was installed; try again"
}

note_of() { if [ -f "$NOTES" ]; then sed -n "s/^$1 //p" "$NOTES"; fi; } # field

choose_way() {
  way=tarball
  if [ -z "$tarball" ] && has dpkg && has apt-get; then way=packages; fi
  former=$(note_of way)
  if [ -n "$former" ] && [ "$former" != "$way" ]; then
    if [ "$former" = tarball ] && [ -z "$tarball" ]; then way=tarball; else
      die "version $(note_of version) is installed here from $former: install.sh --uninstall first"
    fi
  fi
  [ "$way" = packages ] || has xz || die "there is no xz here, with which the tarball is compressed: install it first"
}

# -- packages ---------------------------------------------------------------------------------------------------------

apt() {
  DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -y -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 \
    -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" </dev/null
}

installed() { # package; its version
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p'
}

have_packages() {
  for package in $PACKAGES; do [ "$(installed "$package")" = "$version" ] || return 1; done
}

add_packages() {
  again=
  if [ "$(note_of sum)" = begun ]; then
    again="--reinstall $(note_of new | tr '\n' ' ')"
  elif have_packages; then
    say "version $version is installed"
    return
  fi
  files=
  for package in $PACKAGES; do
    get_checked "${package}_${version}_$arch.deb"
    files="$files $scratch/${package}_${version}_$arch.deb"
  done
  # shellcheck disable=SC2086 # words
  if ! apt -s --no-install-recommends --allow-downgrades install $again $files >"$scratch/plan" 2>"$scratch/why"; then
    [ -z "$dry" ] || die "apt could not install the packages: $(tr '\n' ' ' <"$scratch/why"); apt-get update may help"
    say "apt-get update"
    apt update >/dev/null 2>"$scratch/why" || die "apt-get update failed: $(tr '\n' ' ' <"$scratch/why")"
    apt -s --no-install-recommends --allow-downgrades install $again $files >"$scratch/plan" 2>"$scratch/why" ||
      die "apt cannot install the packages: $(tr '\n' ' ' <"$scratch/why")"
  fi
  if removed=$(sed -n 's/^Remv \([^ ]*\).*/\1/p' "$scratch/plan") && [ -n "$removed" ]; then
    die "apt would remove $(echo "$removed" | tr '\n' ' ')for this: remove them first if that is wanted"
  fi
  new=$(sed -n 's/^Inst \([^ ]*\) (.*/\1/p' "$scratch/plan") # those that are not upgraded
  if [ -n "$dry" ]; then
    say "would install version $version: $PACKAGES; and what is new of $(echo "$new" | tr '\n' ' ')"
    return
  fi
  {
    note_of made | sed 's/^/made /'
    missing_parents /opt
    { note_of new && echo "$new"; } | sort -u | while read -r package; do
      case " $PACKAGES " in *" $package "*) ;; *) echo "new $package" ;; esac
    done
  } >"$scratch/new"
  write_notes "$scratch/new" begun
  sync "$NOTES" "$NOTES_DIR"
  # Of what is new nothing is lost by a power cut, so the disk is waited for once, not after each of two thousand files.
  once=-oDpkg::Options::=--force-unsafe-io
  ! grep -q '^Inst [^ ]* \[' "$scratch/plan" || once=-oDpkg::Options::=--no-force-unsafe-io
  # shellcheck disable=SC2086 # words
  apt "$once" --no-install-recommends --allow-downgrades install $again $files >"$scratch/log" 2>&1 ||
    die "apt failed: $(tail -n 3 "$scratch/log" | tr '\n' ' ')"
  sync
  write_notes "$scratch/new"
  say "installed version $version: $PACKAGES"
}

removals() { sed -n 's/^\(Remv\|Purg\) \([^ ]*\).*/\2/p'; } # of what apt -s prints

remove_packages() {
  there=
  for package in calico-node calico-cni calicoctl calico-kube-controllers cni-calico-bundle; do
    ! dpkg-query -W "$package" >/dev/null 2>&1 || there="$there $package"
  done
  # shellcheck disable=SC2086 # words
  [ -z "$there" ] || apt purge $there >"$scratch/log" 2>&1 || die "apt failed: $(tail -n 3 "$scratch/log" | tr '\n' ' ')"
  # Of what came with them, what nobody has asked for since, unless others depend on some of it: then what apt finds
  # unneeded. Left to itself apt would keep what somebody only recommends.
  manual=$(apt-mark showmanual)
  come=$(for package in $(note_of new); do case " $(echo "$manual" | tr '\n' ' ') " in *" $package "*) ;; *) echo "$package" ;; esac; done)
  # shellcheck disable=SC2086 # words
  if [ -n "$come" ] && [ "$(apt -s purge $come | removals | sort)" != "$(echo "$come" | sort)" ]; then
    come=$(apt -s autoremove | removals | grep -Fx "$come" || :)
  fi
  come=$(echo "$come" | tr '\n' ' ')
  # shellcheck disable=SC2086 # words
  [ -z "${come% }" ] || apt purge $come >"$scratch/log" 2>&1 || die "apt failed: $(tail -n 3 "$scratch/log" | tr '\n' ' ')"
  # dpkg takes a directory away that is empty then
  if ! note_of made | grep -qx /opt; then mkdir -p /opt; fi
  say "removed$there ${come% }"
}

# -- the tarball ------------------------------------------------------------------------------------------------------

command_directory() {
  if [ -w /usr/local/bin ] || { [ ! -e /usr/local/bin ] && [ -w /usr/local ]; }; then echo /usr/local/bin; else echo /opt/bin; fi
}

# What is to be a link into HOME_DIR, with its target.
plan_links() {
  commands=$(command_directory)
  for name in calicoctl kubectl-calico; do echo "$commands/$name $BIN/$name"; done
  for name in calico calico-ipam; do echo "$PLUGIN_DIR/$name $BIN/$name"; done
  for name in bandwidth host-local loopback portmap tuning; do
    # one that is there stays, whose it may be
    if [ ! -e "$PLUGIN_DIR/$name" ] || is_ours "$PLUGIN_DIR/$name"; then echo "$PLUGIN_DIR/$name $HOME_DIR/plugins/$name"; fi
  done
}

is_ours() { # path
  [ -L "$1" ] && case $(readlink "$1") in "$HOME_DIR"/*) ;; *) false ;; esac
}

are_linked() {
  while read -r path target; do
    [ "$(readlink "$path")" = "$target" ] || return 1
  done <"$scratch/links"
}

add_tarball() {
  plan_links >"$scratch/links"
  while read -r path target; do
    if [ -e "$path" ] || [ -L "$path" ]; then
      is_ours "$path" || die "$path is there and not of this installation: another Calico? Remove it first; $target belongs there"
    fi
  done <"$scratch/links"
  if [ ! -f "$NOTES" ] && [ -e "$HOME_DIR" ]; then
    die "$HOME_DIR is there, and nothing says that this script made it: move it away first"
  fi
  if [ "$(note_of sum)" = "$tar_sum" ] && [ -x "$BIN/calicoctl" ] && are_linked; then
    say "version $version is installed"
    return
  fi
  get_checked "$tar_name"
  if [ -n "$dry" ]; then
    say "would install version $version into $HOME_DIR"
    while read -r path target; do say "would link $path -> $target"; done <"$scratch/links"
    return
  fi
  {
    note_of made | sed 's/^/made /'
    for directory in "$HOME_DIR" "$PLUGIN_DIR" "$(command_directory)" "$NOTES_DIR"; do missing_parents "$directory"; done
    while read -r path target; do echo "link $path"; done <"$scratch/links"
    note_of link | sed 's/^/link /'
  } | awk '!seen[$0]++' >"$scratch/notes"
  write_notes "$scratch/notes" begun
  mkdir -p "$HOME_DIR/plugins" "$PLUGIN_DIR" "$(command_directory)"
  find "$HOME_DIR" -maxdepth 1 -name '.unpacked.*' -exec rm -rf {} +
  unpacked=$(mktemp -d "$HOME_DIR/.unpacked.XXXXXX")
  tar -xJf "$scratch/$tar_name" --strip-components=1 --no-same-owner -C "$unpacked"
  "$unpacked/install-bundle.sh" --linked "$unpacked/bin" "$BIN"
  for file in "$unpacked"/plugins/*; do mv -f "$file" "$HOME_DIR/plugins/"; done
  rm -rf "$HOME_DIR/docs"
  for name in docs manifests LICENSE NOTICE CHANGELOG.md README.md install.sh; do
    if [ -e "$unpacked/$name" ]; then
      rm -rf "${HOME_DIR:?}/$name"
      mv "$unpacked/$name" "$HOME_DIR/"
    fi
  done
  rm -rf "$unpacked"
  unpacked=
  while read -r path target; do
    ln -s "$target" "$path.new-$$"
    mv -fT "$path.new-$$" "$path"
  done <"$scratch/links"
  write_notes "$scratch/notes" "$tar_sum"
  for unit in calico-node calico-cni; do systemctl try-restart "$unit.service" 2>/dev/null || :; done
  say "installed version $version into $HOME_DIR"
  for program in nft:nftables ip:iproute2; do
    has "${program%:*}" || echo "install.sh: there is no ${program%:*} here, which calico-node needs: install ${program#*:}" >&2
  done
}

missing_parents() { # directory; the outermost first
  if [ "$1" = / ] || [ -d "$1" ]; then return; fi
  missing_parents "$(dirname "$1")"
  echo "made $1"
}

remove_tarball() {
  note_of link | while read -r path; do
    if is_ours "$path"; then rm -f "$path"; fi
  done
  rm -rf "$HOME_DIR"
  say "removed $HOME_DIR and the links to it"
}

# -- what is written down ---------------------------------------------------------------------------------------------

write_notes() { # file with more lines [sum of the tarball]
  mkdir -p "$NOTES_DIR"
  {
    echo "way $way"
    echo "version $version"
    [ -z "${2:-}" ] || echo "sum $2"
    cat "$1"
  } >"$NOTES.new"
  mv -f "$NOTES.new" "$NOTES"
}

find_program() {
  program=/usr/bin/calicoctl
  [ "$way" = packages ] || program=$BIN/calicoctl
  PATH=$PATH:/usr/sbin:/sbin:/opt/bin # where it looks for itself and for others
}

# -- both directions --------------------------------------------------------------------------------------------------

install_it() {
  find_release
  check_network
  check_signature
  find_version
  choose_way
  if [ "$way" = packages ]; then add_packages; else add_tarball; fi
  find_program
  if [ -z "$network" ]; then
    [ -n "$dry" ] || say "next: $program node init --datastore local (or etcd: docs/hosts.md)"
  elif [ -z "$dry" ]; then
    "$program" node init --datastore local || die "the programs are installed, but calicoctl node init failed: see above"
  elif [ -x "$program" ]; then
    "$program" node init --datastore local --dry-run
  else
    say "would run $program node init --datastore local"
  fi
  [ -z "$dry" ] || say "Nothing was changed: --dry-run."
}

uninstall_it() {
  if [ ! -f "$NOTES" ]; then
    say "nothing of this script's is installed"
    return
  fi
  way=$(note_of way)
  find_program
  if [ -n "$dry" ]; then
    [ ! -x "$program" ] || "$program" node uninstall --dry-run
    say "would remove version $(note_of version) ($way)" "$(note_of new | tr '\n' ' ')"
    say "Nothing was changed: --dry-run."
    return
  fi
  if [ -x "$program" ]; then
    "$program" node uninstall ${yes:+--force} ||
      die "nothing was uninstalled: calicoctl node uninstall did not end well. --yes goes on while containers are attached"
  fi
  if [ "$way" = packages ]; then remove_packages; else remove_tarball; fi
  made=$(note_of made | awk '{ line[NR] = $0 } END { for (i = NR; i; i--) print line[i] }')
  rm -rf "$NOTES_DIR"
  for directory in $made; do rmdir "$directory" 2>/dev/null || :; done
  say "This host is as it was before."
}

main() {
  parse "$@"
  check_host
  unpacked='' scratch=''
  trap 'rm -rf "$scratch" ${unpacked:+"$unpacked"}' EXIT
  trap 'exit 1' HUP INT TERM
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/cni-calico.XXXXXX")
  chmod 755 "$scratch"
  if [ -n "$uninstall" ]; then uninstall_it; else install_it; fi
}

# read as a whole before it begins
main "$@"
