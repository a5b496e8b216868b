#!/bin/bash
# Signs a release (build/release/join.py makes it): its list of sums, and with --registry the images and the chart that
# build/release/publish.sh pushed there, with their bills of materials and provenance.
#
#   build/release/sign.sh --key FILE [--registry PREFIX] DIRECTORY
#   build/release/sign.sh --keyless  [--registry PREFIX] DIRECTORY
#
#   --key FILE         a private key that cosign made; its passphrase is in COSIGN_PASSWORD. Nothing is sent anywhere
#   --keyless          as a workflow, with cosign's services; the list must have a key's signature already (--key first)
#   --registry PREFIX  where the images are: registry.example/team/cni-calico
#
# SHA256SUMS.sigstore.json is what cosign verifies, SHA256SUMS.sig the same signature for openssl. What is signed already
# is not signed again.
#
# Rule: only what fits its list of sums is signed, and only with a key that the release carries for its users.
# Settings: COSIGN_PASSWORD. With --keyless: SIGNING_IDENTITY (default: the GitHub workflow that runs this), SIGNING_ISSUER;
# SIGNING_CONFIG and TRUSTED_ROOT, cosign's files about services that are not Sigstore's own.
# Needs cosign 3 and openssl; for --registry skopeo, jq and .venv (tests/setup/python.sh --build), too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=build/release/verify.sh
. "$here/verify.sh"

python=$here/../../.venv/bin/python
key=
keyless=
registry=
directory=
parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --key) key=${2:?--key wants the file of a private key} && shift ;;
      --keyless) keyless=1 ;;
      --registry) registry=${2:?--registry wants a prefix} && shift ;;
      -h | --help) sed -n '2,/^# Rule/{/^# Rule/d;s/^# \{0,1\}//p;}' "$0" && exit ;;
      -*) unable "unknown option $1; sign.sh --help" ;;
      *)
        [ -z "$directory" ] || unable "one directory, not also $1"
        directory=${1%/}
        ;;
    esac
    shift
  done
  [ -n "$directory" ] || unable "which release? sign.sh --help"
  [ -d "$directory" ] || unable "there is no directory $directory; build/release/join.py makes it"
  if [ -n "$key" ] && [ -n "$keyless" ]; then unable "--key or --keyless, not both"; fi
  if [ -z "$key$keyless" ]; then unable "with what? --key FILE, or --keyless in a workflow"; fi
}

# sets keys (and identity, issuer) to what will be trusted afterwards
read_signer() {
  keys=()
  identity=
  if [ -n "$keyless" ]; then
    identity=${SIGNING_IDENTITY:-${GITHUB_WORKFLOW_REF:+https://github.com/$GITHUB_WORKFLOW_REF}}
    # shellcheck disable=SC2034 # of verify.sh
    issuer=${SIGNING_ISSUER:-$ISSUER}
    [ -n "$identity" ] || unable "as whom? This is no workflow: set SIGNING_IDENTITY, or sign with --key"
    take_trusted_root "${TRUSTED_ROOT:-}"
    if [ -n "${SIGNING_CONFIG:-}" ]; then
      cp "$SIGNING_CONFIG" "$scratch/signing_config.json" || unable "cannot read $SIGNING_CONFIG, which SIGNING_CONFIG names"
    fi
    return
  fi
  [ -r "$key" ] || unable "cannot read the key $key"
  [ -n "${COSIGN_PASSWORD+x}" ] || unable "the passphrase of $key is missing: set COSIGN_PASSWORD, empty if it has none"
  local mode
  mode=$(stat -L -c %a "$key")
  if [ "${mode: -2}" != 00 ]; then
    echo "sign.sh: warning: others may read $key (mode $mode): chmod 600 $key" >&2
  fi
  if ! cosign public-key --key "$key" >"$scratch/own.pub" 2>"$scratch/log"; then
    if grep -qiE 'decrypt|password|passphrase' "$scratch/log"; then
      wrong "cannot open the key $key: COSIGN_PASSWORD is not its passphrase"
    fi
    wrong "cannot use the key $key: $(last_line "$scratch/log")"
  fi
  read_keys "$scratch/own.pub"
  local carried=$directory/$NAME.pub own
  if [ -e "$carried" ]; then
    own=$(fingerprint "$scratch/own.pub")
    read_keys "$carried"
    local each
    for each in "${keys[@]}"; do
      if [ "$(fingerprint "$each")" = "$own" ]; then
        keys=("$each")
        return
      fi
    done
    wrong "users of this release do not have the key $key ($own): $carried has others; add it to published.toml first, and" \
      "sign with it from the next release on"
  fi
}

# how cosign is told what to sign with
with_what() {
  if [ -n "$keyless" ]; then
    echo --yes ${SIGNING_CONFIG:+"--signing-config=$scratch/signing_config.json"} ${trusted_root:+"--trusted-root=$trusted_root"}
  else
    echo "--key=$key" --yes "--signing-config=$scratch/offline.json"
  fi
}

sign_sums() {
  local sums=$directory/SHA256SUMS
  if [ -n "$keyless" ]; then
    [ -e "$sums.sig" ] || wrong "$sums has no key's signature yet, which openssl can check: sign.sh --key FILE first"
    if [ -e "$sums.sigstore.json" ] && (check_signer "$directory" whole) >/dev/null 2>&1; then return; fi
  elif [ -e "$sums.sig" ] && any_key "$sums.sig" "$sums"; then
    if (check_bundle "$directory" whole) >/dev/null 2>&1; then
      echo "$sums: is signed already"
      return
    fi
  fi
  # shellcheck disable=SC2046 # several words
  cosign sign-blob $(with_what) --bundle "$scratch/bundle" "$sums" >"$scratch/log" 2>&1 ||
    wrong "cannot sign $sums: $(last_line "$scratch/log")"
  if [ -z "$keyless" ]; then
    member "$(<"$scratch/bundle")" signature | base64 -d >"$scratch/sig"
    any_key "$scratch/sig" "$sums" || wrong "cosign's signature of $sums is not one that openssl can check"
    install -m 644 "$scratch/sig" "$sums.sig.new"
    mv -f "$sums.sig.new" "$sums.sig"
  fi
  install -m 644 "$scratch/bundle" "$sums.sigstore.json.new"
  mv -f "$sums.sigstore.json.new" "$sums.sigstore.json"
  echo "$sums: signed"
}

sign_image() { # REPOSITORY DIGEST
  [ "$(signature_of "$1" "$2")" != signed ] || return 0
  # shellcheck disable=SC2046 # several words
  cosign sign $(with_what) "$1@$2" >"$scratch/log" 2>&1 || wrong "cannot sign $1@$2: $(last_line "$scratch/log")"
  echo "$1@$2: signed"
}

attest() { # REPOSITORY DIGEST TYPE PREDICATE
  if attestations "$1" "$2" "$3" | jq -es --slurpfile wanted "$4" 'any(.predicate == $wanted[0])' >/dev/null; then return; fi
  # shellcheck disable=SC2046 # several words
  cosign attest $(with_what) --type "$3" --predicate "$4" "$1@$2" >"$scratch/log" 2>&1 ||
    wrong "cannot attach $4 to $1@$2: $(last_line "$scratch/log")"
  echo "$1@$2: $3 attached"
}

sign_registry() {
  local repository index version digest architecture bill
  jq .predicate "$directory/provenance.json" >"$scratch/provenance"
  while read -r repository version index; do
    read_manifest "$repository@$index" "$scratch/index" ||
      wrong "$repository@$index is not there: build/release/publish.sh pushes it: $(last_line "$scratch/log")"
    while read -r digest architecture; do
      bill=$(echo "$directory/$NAME-$version"*"-$architecture.cdx.json")
      sign_image "$repository" "$digest"
      attest "$repository" "$digest" cyclonedx "$bill"
      attest "$repository" "$index" cyclonedx "$bill"
    done < <(jq -r '.manifests[] | "\(.digest) \(.platform.architecture)"' "$scratch/index")
    attest "$repository" "$index" slsaprovenance1 "$scratch/provenance"
    sign_image "$repository" "$index"
  done < <(sed -E "s|.*/([^/:]+):v([^@]+)@(.*)|$registry/\1 \2 \3|" "$directory/images-digests.txt")
  sign_image "$registry/charts/$NAME" \
    "$("$python" "$here/chart.py" "$directory/$NAME-chart-"*.tgz "$scratch/chart")"
}

parse "$@"
make_scratch
need cosign openssl sha256sum
if [ -n "$registry" ]; then
  need skopeo jq
  [ -x "$python" ] || unable "there is no $python: tests/setup/python.sh --build makes it"
fi
check_list "$directory"
check_files "$directory"
echo '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}' >"$scratch/offline.json"
read_signer
sign_sums
if [ -n "$registry" ]; then sign_registry; fi
