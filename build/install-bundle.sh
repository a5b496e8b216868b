#!/bin/sh
# Installs a bundle of executables beside whatever is there, so that no call of a CNI runtime ever fails meanwhile.
#
#   install-bundle.sh [--plain | --linked] SRC DEST [FINAL [NAME...]]
#
#   SRC    a directory that build/build.sh made
#   DEST   where to write, as this process sees it          (/host/opt/cni/bin)
#   FINAL  the same directory as the host sees it           (/opt/cni/bin; default: DEST made absolute)
#   NAME   executables to install, with the NAME.python that some of them execute          (default: all)
#          With only calico and calico-ipam the contents directory lacks what the other programs need.
#          calicoctl comes with a link to it named kubectl-calico, kubectl's plugin
#   --plain  leave the dynamic linker as it is: the executables then need a C library as new as the build machine's
#   --linked  hard links take the place of copies of the contents, where both are in one file system; for a package
#             manager, which removes its own files of the former version at once
#
# Without --plain the executables use the dynamic linker and the C library of the bundle, by an absolute path below
# FINAL; they do not start from another directory.
#
# The native executables need neither: they are the same everywhere.
#
# Rules: files are written under temporary names, checked, and renamed. The contents directory carries the version in its
# name and is complete before an executable that uses it appears. The contents that the replaced executables used stay
# (processes may still load modules from there); older contents are removed after a day.
# Everything that is made has the modes of the bundle, directories 0755, whatever the umask of the caller.
# Needs: cat cp dd find grep head ln ls mkdir mktemp mv rm sha256sum sync touch; coreutils and busybox have them.
set -eu
umask 022

die() {
  echo "install-bundle.sh: $*" >&2
  exit 1
}
plain=
linked=
case ${1:-} in
  --plain) plain=1 && shift ;;
  --linked) linked=1 && shift ;;
esac
[ $# -ge 2 ] || die "usage: install-bundle.sh [--plain | --linked] SRC DEST [FINAL [NAME...]]"
src=$(cd "$1" && pwd -P)
mkdir -p "$2"
dest=$(cd "$2" && pwd -P)
final=${3:-$dest}
final=${final%/}
case $final in /*) ;; *) die "cannot install for $final: not an absolute path" ;; esac
if [ $# -gt 3 ]; then shift 3; else shift $#; fi

# The contents directory that the executables of SRC belong to; there may be older ones beside it.
contents=
for directory in "$src"/.calico-*; do
  if [ -f "$directory/executables" ] && (cd "$src" && sha256sum -c "$directory/executables") >/dev/null 2>&1; then
    contents=${directory##*/}
  fi
done
[ -n "$contents" ] || die "cannot install from $src: no bundle there, or a damaged one"

# Only the plugins: then what just the other programs need is left out.
reduced=
if [ $# -gt 0 ]; then
  reduced=1
  for name; do case $name in calico | calico-ipam) ;; *) reduced= ;; esac; done
fi

verify() { # contents directory; whether it has what is to be installed, as it is in SRC
  (cd "$1" && { if [ -n "$reduced" ]; then grep -vFf "$scratch/unneeded"; else cat; fi } |
    sha256sum -c -) <"$src/$contents/manifest" >/dev/null 2>&1
}

# Move what only the other programs need from $scratch/contents to a contents directory that has all the rest: calls may be
# using that.
add_rest() {
  while read -r path; do
    path=${path%/}
    rm -rf "${dest:?}/$contents/$path"
    mv "$scratch/contents/$path" "$dest/$contents/$path"
  done <"$src/$contents/unneeded"
}

# Remove everything unfinished when this script ends, however it ends.
trap 'rm -rf "${scratch:-}"' EXIT
trap 'exit 1' HUP INT TERM
scratch=$(mktemp -d "$dest/.install-XXXXXX")
chmod 755 "$scratch"

# as they are in lines of the manifest
while read -r path; do echo "  $path"; done <"$src/$contents/unneeded" >"$scratch/unneeded"

if ! verify "$dest/$contents"; then
  if [ -z "$linked" ] || ! cp -Rl "$src/$contents" "$scratch/contents" 2>/dev/null; then
    rm -rf "$scratch/contents"
    cp -R "$src/$contents" "$scratch/contents"
  fi
  if [ -n "$reduced" ]; then
    while read -r path; do rm -rf "$scratch/contents/$path"; done <"$src/$contents/unneeded"
  fi
  verify "$scratch/contents" || die "cannot install into $dest: what was copied differs from $src/$contents"
  if [ -z "$reduced" ] && (reduced=1 && verify "$dest/$contents"); then add_rest; fi
  # a directory cannot be replaced in one step: a damaged one is moved aside
  if [ -e "$dest/$contents" ] && ! verify "$dest/$contents"; then mv -T "$dest/$contents" "$scratch/damaged"; fi
  # it was completed, or another installer was faster
  if [ -e "$dest/$contents" ]; then verify "$dest/$contents"; else
    mv -T "$scratch/contents" "$dest/$contents" || verify "$dest/$contents"
  fi
fi
rm -f "$dest/$contents/superseded"
# an executable finds its contents directory beside itself
ln -s "$dest/$contents" "$scratch/$contents"

poke() { # file offset; bytes come on stdin
  dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# Make a copied executable use the bundle's dynamic linker (and, by restoring the colon in its search path, C library).
make_portable() { # file interpreter-offset interpreter-room search-path-cut
  linker=
  for candidate in "$dest/$contents"/glibc/ld-*.so*; do linker=$final/$contents/glibc/${candidate##*/}; done
  [ "${#linker}" -lt "$3" ] || die "cannot install for $final: the path is too long"
  printf '%s\000' "$linker" | poke "$1" "$2"
  printf ':' | poke "$1" "$4"
}

# Test whether it starts, through the dynamic linker's path as seen from here: FINAL may exist on the host only.
starts() { # file
  if ! grep -q "^${1##*/} " "$src/$contents/placeholders"; then
    CALICO_START_CHECK=1 "$1" </dev/null
    return
  fi
  for linker in "$dest/$contents"/glibc/ld-*.so*; do
    CALICO_START_CHECK=1 "$linker" --library-path "$dest/$contents/glibc:$dest/$contents" "$1" </dev/null
  done
}

while read -r digest name; do
  if [ $# -gt 0 ]; then
    case " $* " in *" ${name%.python} "* | *" $name "*) ;; *) continue ;; esac
  fi
  new=$scratch/$name
  cp "$src/$name" "$new"
  echo "$digest  $new" | sha256sum -c >/dev/null 2>&1 || die "cannot install $name: the copy differs"
  if [ -z "$plain" ]; then
    while read -r which interpreter room cut; do
      if [ "$which" = "$name" ]; then make_portable "$new" "$interpreter" "$room" "$cut"; fi
    done <"$src/$contents/placeholders"
  fi
  starts "$new" || die "cannot install $name: it does not start"
done <"$src/$contents/executables"
sync
while read -r _ name; do
  if [ -f "$scratch/$name" ]; then mv -f "$scratch/$name" "$dest/$name"; fi
done <"$dest/$contents/executables"

# Under this name kubectl finds calicoctl as its plugin: "kubectl calico".
case " $* " in
  "  " | *" calicoctl "*)
    ln -s calicoctl "$scratch/kubectl-calico"
    mv -fT "$scratch/kubectl-calico" "$dest/kubectl-calico"
    ;;
esac

# Contents of other versions: note when they went out of use; keep the last one, and all for a day.
for directory in "$dest"/.calico-*; do
  if [ "$directory" != "$dest/$contents" ] && [ ! -e "$directory/superseded" ]; then touch "$directory/superseded"; fi
done
find "$dest" -maxdepth 1 -name '.install-*' -mtime +0 -exec rm -rf {} +
previous=$(cd "$dest" && find .calico-* -maxdepth 1 -name superseded -exec ls -dt {} + | head -n 1)
find "$dest" -maxdepth 2 -path "$dest/.calico-*/superseded" -mtime +0 | while read -r mark; do
  if [ "$mark" != "$dest/$previous" ]; then rm -rf "${mark%/superseded}"; fi
done
