#!/bin/bash
# Checks where a release, an image or the chart comes from, and that all of it is there.
#
#   verify.sh [--key FILE]... DIRECTORY           a release: who signed its list of sums, every file, none more, none less
#   verify.sh [--key FILE]... FILE                one file of a release, with SHA256SUMS and SHA256SUMS.sig beside it
#   verify.sh [--key FILE]... REGISTRY/node:vV    an image: its signature and those of its platforms, the platforms, every
#                                                 byte, the bills of materials, and whether the tag is of that version
#   verify.sh [--key FILE]... oci://REGISTRY/charts/cni-calico:V                  the chart
#   verify.sh --identity WHO [--issuer URL] [--trusted-root FILE] ...    signed by a workflow, without a key. FILE has the keys
#                                                 of the services that vouch for it: without a network, or where they are
#                                                 not Sigstore's own (cosign trusted-root create)
#   verify.sh --unsigned DIRECTORY                only whether the files are those of SHA256SUMS, whoever wrote it
#   verify.sh --fingerprint FILE                  only prints the SHA-256 of each public key in FILE
#
# A FILE of keys may hold several; one of them has to fit. Without --key they are those of cni-calico.pub beside this
# script: compare their fingerprints with ones from elsewhere, as whoever changed a release can have changed them, too.
# A directory needs openssl; images and charts need cosign 3, skopeo and jq. Registries on localhost and 127.* are spoken to
# without TLS. Status: 0 it is right, 1 it is not, and why; 2 it could not be checked, and what to do.
#
# Rule: what is not proved is wrong. Sourced by another script it only defines its functions.
set -euo pipefail

SIGNATURE=https://sigstore.dev/cosign/sign/v1
PLATFORMS="linux/amd64 linux/arm64"
ISSUER=https://token.actions.githubusercontent.com
NAME=cni-calico

wrong() {
  echo "${0##*/}: $*" >&2
  exit 1
}
unable() {
  echo "${0##*/}: $*" >&2
  exit 2
}

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null && continue
    case $tool in
      cosign) unable "cannot check a signature: no cosign; install version 3 of it (github.com/sigstore/cosign)" ;;
      openssl | skopeo | jq) unable "cannot check this: no $tool; install the package $tool" ;;
      *) unable "cannot check this: no $tool; install it" ;;
    esac
  done
}

# a directory for this run, gone with it
make_scratch() {
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
}

# read_keys FILE...: the public keys in them, as files in keys
read_keys() {
  local file key first
  keys=()
  for file in "$@"; do
    [ -r "$file" ] || unable "cannot read the key $file"
    first=${#keys[@]}
    awk -v to="$scratch/key-$first-" '/^-----BEGIN PUBLIC KEY-----/ { n++ } n { print > (to n ".pub") }' "$file"
    for key in "$scratch/key-$first-"*.pub; do
      openssl pkey -pubin -in "$key" -noout 2>/dev/null || unable "$file has no public key, or one that openssl cannot read"
      keys+=("$key")
    done
  done
}

fingerprint() { openssl pkey -pubin -in "$1" -outform DER | sha256sum | cut -d ' ' -f 1; }

# any_key SIGNATURE FILE: whether one of keys made the signature
any_key() {
  local key
  for key in "${keys[@]}"; do
    if openssl dgst -sha256 -verify "$key" -signature "$1" "$2" >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

# check_list DIRECTORY: a list of sums and nothing else, no name twice, none with a directory
check_list() {
  [ -f "$1/SHA256SUMS" ] || wrong "$1 has no SHA256SUMS, so it is no release"
  local odd
  odd=$(grep -vxE '[0-9a-f]{64}  [A-Za-z0-9][A-Za-z0-9._+~-]*' "$1/SHA256SUMS" | head -n 1) || true
  [ -z "$odd" ] || wrong "$1/SHA256SUMS has a line that is none of sha256sum: $odd"
  odd=$(cut -c 67- "$1/SHA256SUMS" | LC_ALL=C sort | uniq -d | head -n 1)
  [ -z "$odd" ] || wrong "$1/SHA256SUMS names $odd twice"
}

# check_files DIRECTORY: exactly those of the list, with its sums
check_files() {
  local path have listed odd
  listed=$(cut -c 67- "$1/SHA256SUMS" | LC_ALL=C sort)
  have=$(for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -e "$path" ] || [ -L "$path" ]; then printf '%s\n' "${path##*/}"; fi
  done | grep -vxE 'SHA256SUMS(\.sig|\.sigstore\.json)?' | LC_ALL=C sort) || true
  odd=$(LC_ALL=C comm -13 <(echo "$have") <(echo "$listed") | head -n 1)
  [ -z "$odd" ] || wrong "$1 lacks $odd, which SHA256SUMS lists"
  odd=$(LC_ALL=C comm -23 <(echo "$have") <(echo "$listed") | head -n 1)
  [ -z "$odd" ] || wrong "$1 has $odd, which SHA256SUMS does not list"
  odd=$(cd "$1" && sha256sum --check --quiet --strict SHA256SUMS 2>/dev/null | head -n 1) || true
  [ -z "$odd" ] || wrong "$1/${odd%%: *} is not what SHA256SUMS says: it was changed, or only a part was fetched"
  (cd "$1" && sha256sum --check --status --strict SHA256SUMS) || wrong "the files of $1 are not those of SHA256SUMS"
}

# member TEXT NAME: the text of a JSON member of that name, where there is one (a bundle has each once)
member() { grep -oE "\"$2\" *: *\"[^\"]*\"" <<<"$1" | head -n 1 | sed 's/.*: *"//; s/"$//'; }

# check_bundle DIRECTORY WHOLE: SHA256SUMS.sigstore.json is of this list, and made by one of keys unless it says who made it
check_bundle() {
  local bundle=$1/SHA256SUMS.sigstore.json text
  if [ ! -e "$bundle" ]; then
    [ -z "$2" ] || wrong "$1 has no SHA256SUMS.sigstore.json: fetch it, or the release was not signed to its end"
    return 0
  fi
  text=$(<"$bundle")
  if [ "$(member "$text" digest)" != "$(openssl dgst -sha256 -binary "$1/SHA256SUMS" | base64)" ]; then
    wrong "$bundle is a signature of another file than SHA256SUMS"
  fi
  if grep -qE '"(rawBytes|certificate|x509CertificateChain)"' <<<"$text"; then return 0; fi
  member "$text" signature | base64 -d >"$scratch/bundle.sig" 2>/dev/null || wrong "$bundle has no signature"
  any_key "$scratch/bundle.sig" "$1/SHA256SUMS" || wrong "$bundle was made with another key"
}

# check_signer DIRECTORY WHOLE: the list of sums was signed by whom we trust
check_signer() {
  check_list "$1"
  if [ -n "${identity:-}" ]; then
    need cosign
    [ -e "$1/SHA256SUMS.sigstore.json" ] || wrong "$1 is not signed: it has no SHA256SUMS.sigstore.json"
    # shellcheck disable=SC2046 # several words
    cosign verify-blob --bundle "$1/SHA256SUMS.sigstore.json" $(whose "") "$1/SHA256SUMS" >"$scratch/log" 2>&1 ||
      wrong "$1/SHA256SUMS was not signed by $identity: $(last_line "$scratch/log")"
    return
  fi
  [ -e "$1/SHA256SUMS.sig" ] || wrong "$1 is not signed: it has no SHA256SUMS.sig"
  if ! any_key "$1/SHA256SUMS.sig" "$1/SHA256SUMS"; then
    wrong "$1/SHA256SUMS was changed after it was signed, or signed with another key than $(known_keys)"
  fi
  check_bundle "$1" "$2"
}

known_keys() {
  local key found=()
  for key in "${keys[@]}"; do found+=("$(fingerprint "$key" | cut -c 1-16)..."); done
  printf '%s' "${found[*]}"
}

# last_line FILE: what a program said at its end, without the time that skopeo puts before it
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 | sed -E 's/^time="[^"]*" level=[a-z]+ msg=//' | cut -c 1-300; }

verify_directory() {
  check_signer "$1" whole
  check_files "$1"
  echo "$1: signed, and every file is as signed"
}

verify_file() {
  local directory=. name=${1##*/} line
  case $1 in */*) directory=${1%/*} ;; esac
  check_signer "$directory" ""
  line=$(grep -E "^[0-9a-f]{64}  " "$directory/SHA256SUMS" | awk -v name="$name" '$2 == name') || true
  [ -n "$line" ] || wrong "$1 is no file of that release: SHA256SUMS does not list $name"
  (cd "$directory" && sha256sum --check --status <<<"$line") ||
    wrong "$1 is not what SHA256SUMS says: it was changed, or only a part was fetched"
  echo "$1: signed, and as signed"
}

# ---- images and charts

# is_local REFERENCE: of a registry without TLS, as Docker and cosign decide it
is_local() { case ${1%%/*} in localhost | localhost:* | 127.*) return 0 ;; *) return 1 ;; esac }

tls_of() { if is_local "$1"; then echo "--tls-verify=false"; else echo "--tls-verify=true"; fi }

# read_manifest REFERENCE FILE: its bytes; fails where there is none
read_manifest() { skopeo inspect "$(tls_of "$1")" --raw "docker://$1" >"$2" 2>"$scratch/log"; }

digest_of() { echo "sha256:$(sha256sum <"$1" | cut -d ' ' -f 1)"; }

# whose KEY: how cosign is told whom to trust; KEY is empty where identity is
whose() {
  if [ -n "${identity:-}" ]; then
    echo "--certificate-identity=$identity" "--certificate-oidc-issuer=$issuer" ${trusted_root:+"--trusted-root=$trusted_root"}
  else
    echo "--key=$1" --insecure-ignore-tlog=true
  fi
}

# take_trusted_root FILE: sets trusted_root to a copy, whose name is one word
take_trusted_root() {
  trusted_root=
  [ -n "$1" ] || return 0
  [ -r "$1" ] || unable "cannot read $1, the keys of the services that vouch for ${identity:-somebody}"
  cp "$1" "$scratch/trusted_root.json"
  trusted_root=$scratch/trusted_root.json
}

# signature_of REPOSITORY DIGEST: signed, attested (only), unsigned or other (somebody else's)
signature_of() {
  local key state=unsigned status trusted=("${keys[@]}")
  if [ -n "${identity:-}" ]; then trusted=(""); fi
  for key in "${trusted[@]}"; do
    status=0
    # shellcheck disable=SC2046 # two words
    cosign verify $(whose "$key") --output=json "$1@$2" >"$scratch/signed" 2>"$scratch/log" || status=$?
    case $status in
      0)
        if jq -es --arg type "$SIGNATURE" --arg digest "$2" \
          'flatten | any(.critical.type == $type and .critical.image["docker-manifest-digest"] == $digest)' \
          <"$scratch/signed" >/dev/null; then
          echo signed
          return
        fi
        state=attested
        ;;
      10) ;;
      *) if [ "$state" = unsigned ]; then state=other; fi ;;
    esac
  done
  echo "$state"
}

require_signature() { # REPOSITORY DIGEST WHAT
  case $(signature_of "$1" "$2") in
    signed) ;;
    attested) wrong "$3 is not signed: it has attestations only" ;;
    unsigned) wrong "$3 is not signed" ;;
    other) wrong "$3 has no signature by ${identity:-$(known_keys)}: $(last_line "$scratch/log")" ;;
    *) wrong "$3: nobody could say whether it is signed" ;;
  esac
}

# attestations REPOSITORY DIGEST TYPE: the statements of that type about it that one of keys signed, one a line
attestations() {
  local key trusted=("${keys[@]}")
  if [ -n "${identity:-}" ]; then trusted=(""); fi
  for key in "${trusted[@]}"; do
    # shellcheck disable=SC2046 # two words
    cosign verify-attestation $(whose "$key") --type "$3" --output=json "$1@$2" 2>"$scratch/log" |
      jq -rc '.payload | @base64d | fromjson' || true
  done | jq -c --arg digest "${2#sha256:}" 'select(any(.subject[]; .digest.sha256 == $digest))'
}

require_attestation() { # REPOSITORY DIGEST TYPE WHAT
  [ -n "$(attestations "$1" "$2" "$3" | head -n 1)" ] || wrong "$4 that we trust: $(last_line "$scratch/log")"
}

# check_bytes REFERENCE DIGEST: all that the manifest names can be fetched and is what the manifest says
check_bytes() {
  rm -rf "$scratch/image"
  skopeo copy --quiet --all --preserve-digests "--src-$(tls_of "$1" | cut -c 3-)" "docker://$1@$2" "dir:$scratch/image" \
    >"$scratch/log" 2>&1 || wrong "$1@$2 is not what was signed: $(last_line "$scratch/log")"
}

# check_tag WHAT TAG V VERSION: v1.2.3, v1.2 and latest are of 1.2.3; a chart has no v
check_tag() {
  case $2 in
    "" | "$3$4" | latest | "$3${4%.*}") ;;
    *) wrong "the tag of $1 was moved: what it leads to is version $4" ;;
  esac
}

annotation() { jq -r --arg name "org.opencontainers.image.$1" '.annotations[$name] // ""' "$2"; }

verify_image() { # REPOSITORY TAG DIGEST MANIFEST
  local what="$1${2:+:$2}" title version have digest platform config
  title=$(annotation title "$4")
  version=$(annotation version "$4")
  [ "$title" = "${1##*/}" ] || wrong "$what was moved: it is the image ${title:-of nobody}"
  check_tag "$what" "$2" v "${version%.dirty}"
  have=$(jq -r '[.manifests[].platform | "\(.os)/\(.architecture)"] | sort | join(" ")' "$4")
  [ "$have" = "$PLATFORMS" ] || wrong "$what is for ${have:-nothing}, and a release is for $PLATFORMS"
  check_bytes "$1" "$3"
  while read -r digest platform; do
    require_signature "$1" "$digest" "the image of $what for $platform"
    require_attestation "$1" "$digest" cyclonedx "the image of $what for $platform has no bill of materials"
    config=$(jq -r .config.digest "$scratch/image/${digest#sha256:}.manifest.json")
    have=$(jq -r '"\(.os)/\(.architecture) \(.config.Labels["org.opencontainers.image.version"])"' \
      "$scratch/image/${config#sha256:}")
    [ "$have" = "$platform $version" ] || wrong "the image of $what for $platform calls itself $have"
  done < <(jq -r '.manifests[] | "\(.digest) \(.platform.os)/\(.platform.architecture)"' "$4")
  require_attestation "$1" "$3" slsaprovenance1 "$what has no provenance"
  echo "$what: signed, with its platforms and bills of materials ($3)"
}

verify_chart() { # REPOSITORY TAG DIGEST MANIFEST
  local title
  title=$(annotation title "$4")
  [ "$title" = "${1##*/}" ] || wrong "$1${2:+:$2} was moved: it is the chart ${title:-of nobody}"
  check_tag "$1${2:+:$2}" "$2" "" "$(annotation version "$4")"
  check_bytes "$1" "$3"
  echo "$1${2:+:$2}: signed ($3)"
}

verify_reference() {
  local reference=${1#oci://} repository tag="" digest read
  reference=${reference#docker://}
  repository=${reference%@*}
  case ${repository##*/} in
    *:*)
      tag=${repository##*:}
      repository=${repository%:*}
      ;;
    *)
      case $reference in
        *@sha256:*) ;;
        *) unable "$1 is no file, and as an image it has no tag: REGISTRY/node:vVERSION, or ...@sha256:..." ;;
      esac
      ;;
  esac
  need cosign skopeo jq openssl
  # by the tag where there is one: that is what somebody pulls
  if [ -n "$tag" ]; then read=$repository:$tag; else read=$repository@${reference#*@}; fi
  read_manifest "$read" "$scratch/manifest" || unable "cannot fetch $read: $(last_line "$scratch/log")"
  digest=$(digest_of "$scratch/manifest")
  case $reference in
    *@sha256:*) [ "${reference#*@}" = "$digest" ] || wrong "the tag of $repository:$tag was moved: it leads to $digest" ;;
  esac
  require_signature "$repository" "$digest" "$read"
  case $(jq -r '.mediaType + " " + (.config.mediaType // "")' "$scratch/manifest") in
    "application/vnd.oci.image.index.v1+json "*) verify_image "$repository" "$tag" "$digest" "$scratch/manifest" ;;
    *" application/vnd.cncf.helm.config.v1+json") verify_chart "$repository" "$tag" "$digest" "$scratch/manifest" ;;
    *) wrong "$read is neither an image for several processors nor a chart" ;;
  esac
}

main() {
  local files=() unsigned="" show="" roots="" here
  here=$(dirname "$0")
  identity=""
  issuer=$ISSUER
  while [ $# -gt 0 ]; do
    case $1 in
      --key) files+=("${2:?--key wants a file with public keys}") && shift ;;
      --identity) identity=${2:?--identity wants the address of a workflow} && shift ;;
      --issuer) issuer=${2:?--issuer wants an address} && shift ;;
      --trusted-root) roots=${2:?--trusted-root wants a file} && shift ;;
      --unsigned) unsigned=1 ;;
      --fingerprint) show=${2:?--fingerprint wants a file with public keys} && shift ;;
      -h | --help) sed -n '2,/^# Rule/{/^# Rule/d;s/^# \{0,1\}//p;}' "$0" && exit ;;
      -*) unable "unknown option $1; verify.sh --help" ;;
      *) break ;;
    esac
    shift
  done
  make_scratch
  need sha256sum
  if [ -n "$show" ]; then
    need openssl
    read_keys "$show"
    for key in "${keys[@]}"; do fingerprint "$key"; done
    return
  fi
  [ $# = 1 ] || unable "what is to be checked? A directory, a file, an image or a chart; verify.sh --help"
  if [ -n "$unsigned" ]; then
    [ -d "$1" ] || unable "--unsigned is for a directory, and $1 is none"
    check_list "$1"
    check_files "$1"
    return
  fi
  keys=()
  take_trusted_root "$roots"
  if [ -z "$identity" ]; then
    [ -z "$roots" ] || unable "--trusted-root belongs to --identity: a key needs nobody to vouch for it"
    need openssl
    if [ "${#files[@]}" = 0 ]; then
      files=("$here/$NAME.pub")
      [ -r "${files[0]}" ] || unable "with which key? There is no $NAME.pub beside this script: --key FILE, or --identity"
    fi
    read_keys "${files[@]}"
  elif [ "${#files[@]}" != 0 ]; then
    unable "--key or --identity, not both"
  fi
  if [ -d "$1" ]; then verify_directory "${1%/}"; elif [ -f "$1" ]; then verify_file "$1"; else
    case $1 in
      */*:* | */*@*) verify_reference "$1" ;;
      *) unable "there is no $1, and it is no image either" ;;
    esac
  fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
