# shellcheck shell=bash
# Sourced after debian.sh: a Go command that is new enough, and throw-away modules to build programs in.

LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}
# shellcheck disable=SC2034 # used by those who source this
BIN=$LAB_CACHE/bin
GO_MINIMUM=1.25.0

built() { [ -x "$1" ] && [ "$(cat "$LAB_CACHE/mod/${1##*/}.version" 2>/dev/null)" = "$2" ]; }

new_enough() { # go command
  local have
  have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$GO_MINIMUM" "${have#go}" | sort -V | head -n 1)" = "$GO_MINIMUM" ]
}

# Sets GO to a go command that is new enough: one that is here, else a toolchain fetched as a Go module, for which the
# distribution's older go is enough.
find_go() {
  local candidate answer root
  for candidate in "${GO:-}" /usr/local/go/bin/go "$(command -v go || true)" "$LAB_CACHE/go/bin/go"; do
    if [ -n "$candidate" ] && new_enough "$candidate"; then
      GO=$candidate
      return
    fi
  done
  candidate=$(command -v go) || {
    debian_install golang-go ca-certificates
    candidate=/usr/bin/go
  }
  answer=$(cd / && "$candidate" mod download -json "golang.org/toolchain@v0.0.1-go$GO_MINIMUM.linux-$(dpkg --print-architecture)")
  root=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p' <<<"$answer")
  # modules are unpacked without the executable bit, and read-only
  rm -rf "$LAB_CACHE/go"
  cp -r "$root" "$LAB_CACHE/go"
  chmod -R u+wX "$LAB_CACHE/go"
  chmod -R u+x "$LAB_CACHE/go/bin" "$LAB_CACHE/go/pkg/tool"
  GO=$LAB_CACHE/go/bin/go
  new_enough "$GO" || { echo "cannot build the test programs: no Go $GO_MINIMUM or newer" >&2; exit 1; }
}

# begin FILE VERSION [--check]: for a script that builds one program. Ends it where the program is there, and with --check in
# any case (the status says whether it is); else nobody else builds it meanwhile, and there is a go command
begin() {
  if [ "${3:-}" = --check ] || built "$1" "$2"; then
    built "$1" "$2"
    exit
  fi
  mkdir -p "$LAB_CACHE"
  exec 9>"$LAB_CACHE/build-${1##*/}.lock"
  flock 9
  if built "$1" "$2"; then exit; fi
  find_go
}

# module FILE VERSION MODULE: makes the throw-away module that FILE is built in and prints its directory; further
# lines of its go.mod come on stdin
module() {
  local dir=$LAB_CACHE/mod/${1##*/}.src
  rm -rf "$dir"
  mkdir -p "$dir" "${1%/*}"
  { printf 'module tools\n\ngo 1.24.0\n\nrequire %s %s\n' "$3" "$2"; cat; } >"$dir/go.mod"
  echo "$dir"
}

# compile FILE VERSION DIRECTORY PACKAGE [LDFLAGS]: in the module of that directory; FILE.test holds the package's tests
compile() {
  local started=$SECONDS how=(build)
  case $1 in *.test) how=(test -c -vet=off) ;; esac
  (cd "$3" && GOTOOLCHAIN=local GOFLAGS="-buildvcs=false ${GOFLAGS:-}" GOWORK=off CGO_ENABLED=0 \
    nice "$GO" "${how[@]}" -mod=mod -trimpath -ldflags "-s -w ${5:-}" -o "$1.new" "$4")
  mv -f "$1.new" "$1"
  echo "$2" >"$LAB_CACHE/mod/${1##*/}.version"
  echo "built ${1##*/} $2 in $((SECONDS - started)) s"
}

# single FILE VERSION MODULE PACKAGE: one program of one module
single() {
  local dir
  dir=$(module "$1" "$2" "$3" </dev/null)
  compile "$1" "$2" "$dir" "$4"
  rm -rf "$dir"
}
