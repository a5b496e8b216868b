#!/bin/bash
# Copies a release's images and chart to another registry, with their signatures, and checks them there.
#
#   mirror.sh [--version V] [--key FILE]... [--identity WHO [--issuer URL] [--trusted-root FILE]] FROM TO
#
# FROM and TO are prefixes: registry.example/team/cni-calico, of which .../node:vV is an image. Without --version it is the
# newest of FROM. The other options are verify.sh's, which has to lie beside this script.
# Credentials are those of `skopeo login`.
#
# Rule: what is not signed is not copied, and in TO a tag appears after everything that it leads to was checked there.
# Needs skopeo, cosign 3, jq and openssl.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=build/release/verify.sh
. "$here/verify.sh"

trust=()
version=
while [ $# -gt 0 ]; do
  case $1 in
    --version) version=${2:?--version wants a version} && shift ;;
    --key | --identity | --issuer | --trusted-root) trust+=("$1" "${2:?$1 wants a value}") && shift ;;
    -h | --help) sed -n '2,/^# Rule/{/^# Rule/d;s/^# \{0,1\}//p;}' "$0" && exit ;;
    -*) unable "unknown option $1; mirror.sh --help" ;;
    *) break ;;
  esac
  shift
done
[ $# = 2 ] || unable "from where to where? mirror.sh FROM TO, prefixes such as registry.example/team/cni-calico"
from=${1%/} to=${2%/}
need skopeo cosign jq openssl sha256sum
make_scratch

# copy REPOSITORY WHICH [OPTION]: WHICH is a :tag or a @digest
copy() {
  skopeo copy --quiet --all ${3:+"$3"} "--src-$(tls_of "$from" | cut -c 3-)" "--dest-$(tls_of "$to" | cut -c 3-)" \
    "docker://$from/$1$2" "docker://$to/$1$2" >"$scratch/log" 2>&1 ||
    wrong "cannot copy $from/$1$2 to $to: $(last_line "$scratch/log")"
}

if [ -z "$version" ]; then
  version=$(skopeo list-tags "$(tls_of "$from")" "docker://$from/node" 2>"$scratch/log" |
    jq -r '.Tags[] | select(test("^v[0-9]+[.][0-9]+[.][0-9]+$"))' | sort -V | tail -n 1) || true
  version=${version#v}
  [ -n "$version" ] || wrong "$from/node has no version: $(last_line "$scratch/log")"
fi
images=(node:"v$version" kube-controllers:"v$version" "charts/$NAME:$version")
for image in "${images[@]}"; do
  "$here/verify.sh" "${trust[@]}" "$from/$image" >/dev/null || exit
done
for image in "${images[@]}"; do
  repository=${image%:*}
  read_manifest "$from/$image" "$scratch/manifest" || wrong "cannot read $from/$image: $(last_line "$scratch/log")"
  digest=$(digest_of "$scratch/manifest")
  copy "$repository" "@$digest" --preserve-digests
  for each in "$digest" $(jq -r '(.manifests // [])[].digest' "$scratch/manifest"); do
    signatures=:sha256-${each#sha256:}
    if ! read_manifest "$from/$repository$signatures" "$scratch/signatures"; then
      wrong "the signature of $from/$repository@$each is not under the tag ${signatures#:}: that registry keeps it elsewhere" \
        "(referrers API); copy with a program that asks for it: oras cp -r"
    fi
    # a list of signatures, which older versions of skopeo write anew; the signatures stay as they are
    copy "$repository" "$signatures"
  done
  "$here/verify.sh" "${trust[@]}" "$to/$repository@$digest" >/dev/null || exit
done
for image in "${images[@]}"; do
  copy "${image%:*}" ":${image##*:}" --preserve-digests
  "$here/verify.sh" "${trust[@]}" "$to/$image" || exit
done
