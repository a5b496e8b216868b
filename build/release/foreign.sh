#!/bin/bash
# Runs a command where programs of another processor run, too: in namespaces of users and mounts with a binfmt_misc of
# their own, which gives these programs to qemu.
#
#   build/release/foreign.sh ARCH COMMAND...      ARCH: Debian's name of the processor (amd64, arm64)
#
# Rule: nothing of it is seen outside, and it ends with the command. Inside, users have their numbers and root may do all but
# make devices, load modules and change the machine's network. For this machine's own processor the command runs as it is.
# What is emulated is right for building and for unpacking; netlink is not (qemu translates only some of its messages), so
# an agent is tried in a virtual machine: tests/kernels.
# Needs root, Linux 6.7 for a binfmt_misc of a namespace's own, and qemu-user-static, which it installs.
set -euo pipefail
# shellcheck source=tests/setup/debian.sh
. "$(dirname "$0")/../../tests/setup/debian.sh"

die() {
  echo "foreign.sh: cannot run programs of $arch here: $*; on a machine of that processor nothing is emulated" >&2
  exit 1
}
arch=${1:?Debian\'s name of the processor is missing: foreign.sh ARCH COMMAND...}
shift
[ "$#" != 0 ] || { echo "foreign.sh: the command is missing: foreign.sh $arch COMMAND..." >&2; exit 2; }
[ "$arch" != "$(dpkg --print-architecture)" ] || exec "$@"
# ELF, 64 bits, little-endian; any system's; an executable or a shared object; the processor's number
case $arch in
  amd64) qemu=x86_64 number='\x3e\x00' ;;
  arm64) qemu=aarch64 number='\xb7\x00' ;;
  *) die "no emulator of it is known" ;;
esac
emulator=/usr/bin/qemu-$qemu-static
[ "$(id -u)" = 0 ] || die "it needs root, to give the files of a root their owners"
if [ ! -x "$emulator" ]; then
  debian_install qemu-user-static >&2 || die "Debian's qemu-user-static, which has the emulator, could not be installed"
  [ -x "$emulator" ] || die "the emulator $emulator is missing, although Debian's qemu-user-static is installed"
fi
# a module on some kernels; in a container there may be no modprobe, and the kernel may have it all the same
[ -d /proc/sys/fs/binfmt_misc ] || modprobe -q binfmt_misc || :
[ -d /proc/sys/fs/binfmt_misc ] || die "the kernel has no binfmt_misc (CONFIG_BINFMT_MISC)"
# F: the emulator is opened now, so roots need none; P: programs see the name that they were called by
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'$number
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
format=":qemu-$qemu:M::$magic:$mask:$emulator:PF"

# a process cannot map other users than its own itself; this one does it for the command
coproc MAP {
  read -r pid
  for ids in uid gid; do
    { awk '{ print $1, $1, $3 }' "/proc/self/${ids}_map" >"/proc/$pid/${ids}_map"; } 2>/dev/null || echo "refused"
  done
  echo mapped
}
# opened anew: bash closes its own before a program is executed
exec 3<"/proc/self/fd/${MAP[0]}" 4>"/proc/self/fd/${MAP[1]}"
# a program that is executed now is root's again: until the map is there, nobody is anybody
# shellcheck disable=SC2016 # for the shell in the namespaces
inside='
  echo $$ >&4
  read -r said <&3
  exec 3<&- 4>&-
  die() { echo "foreign.sh: cannot run programs of $arch here: $1; on a machine of that processor nothing is emulated" >&2; exit 1; }
  [ "$said" = mapped ] || die "the kernel refuses a user namespace the numbers of all users"
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc 2>/dev/null ||
    die "the kernel ($(uname -r)) has no binfmt_misc for each namespace, Linux has since 6.7"
  echo "$format" 2>/dev/null >/proc/sys/fs/binfmt_misc/register || die "binfmt_misc refuses $emulator"
  unset format emulator said
  exec "$@"'
status=0
arch=$arch format=$format emulator=$emulator unshare --user --mount true 2>/dev/null || status=$?
[ "$status" = 0 ] || die "user namespaces are switched off (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
arch=$arch format=$format emulator=$emulator exec unshare --user --mount bash -euc "$inside" foreign.sh "$@"
