#!/bin/bash
# Publishes a signed release: images and chart to a registry, its files and its page to a directory of web pages.
#
#   build/release/publish.sh [--dry-run] [--registry PREFIX] [--key FILE | --keyless] [--pages TREE] DIRECTORY
#
#   --dry-run          only prints the plan
#   --registry PREFIX  in place of the one that the release was made for: registry.example/team/cni-calico
#   --key, --keyless   what images and chart are signed with, as for sign.sh (default: --key "$SIGNING_KEY")
#   --pages TREE       a directory that a web server shows: TREE/releases/vV gets the files, TREE/apt the packages
#
# DIRECTORY is what build/release/join.py made and build/release/sign.sh signed. Whatever stops it (a lost network, a kill):
# run it again; what is there already is left as it is.
#
# Rule: everything that can be refused is refused before the first write. Images are pushed by their digest, signed, and
# checked from the registry; only then tags lead to them: the version's, and `latest` and `vX.Y` where none is newer.
# Settings: SIGNING_KEY, COSIGN_PASSWORD; with --keyless those of sign.sh; REGISTRY_USER and REGISTRY_PASSWORD (default: those
# of `skopeo login`); APT_KEY, the fingerprint of gpg's key for TREE/apt (default: no packages there).
# Needs skopeo, cosign 3, jq and openssl, and .venv (tests/setup/python.sh --build); for TREE/apt gpg, gpgv and dpkg-deb.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=build/release/verify.sh
. "$here/verify.sh"

python=$here/../../.venv/bin/python
dry=
registry=
pages=
directory=
signer=()
parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --dry-run) dry=1 ;;
      --registry) registry=${2:?--registry wants a prefix} && shift ;;
      --pages) pages=${2:?--pages wants a directory} && shift ;;
      --key) signer=(--key "${2:?--key wants the file of a private key}") && shift ;;
      --keyless) signer=(--keyless) ;;
      -h | --help) sed -n '2,/^# Rule/{/^# Rule/d;s/^# \{0,1\}//p;}' "$0" && exit ;;
      -*) unable "unknown option $1; publish.sh --help" ;;
      *)
        [ -z "$directory" ] || unable "one directory, not also $1"
        directory=${1%/}
        ;;
    esac
    shift
  done
  [ -n "$directory" ] || unable "which release? publish.sh --help"
  [ -d "$directory" ] || unable "there is no directory $directory; build/release/join.py makes it"
  [ -x "$python" ] || unable "there is no $python: tests/setup/python.sh --build makes it"
  if [ "${#signer[@]}" = 0 ]; then
    [ -n "${SIGNING_KEY:-}" ] || unable "with what are the images signed? Set SIGNING_KEY, or --key FILE, or --keyless"
    signer=(--key "$SIGNING_KEY")
  fi
}

# sets trust to verify.sh's words for what the release is to be signed with, and keys or identity to the same
read_trust() {
  keys=()
  identity=
  if [ "${signer[0]}" = --keyless ]; then
    identity=${SIGNING_IDENTITY:-${GITHUB_WORKFLOW_REF:+https://github.com/$GITHUB_WORKFLOW_REF}}
    # shellcheck disable=SC2034 # of verify.sh
    issuer=${SIGNING_ISSUER:-$ISSUER}
    [ -n "$identity" ] || unable "as whom? This is no workflow: set SIGNING_IDENTITY, or sign with --key"
    trust=(--identity "$identity" --issuer "$issuer" ${TRUSTED_ROOT:+--trusted-root "$TRUSTED_ROOT"})
    take_trusted_root "${TRUSTED_ROOT:-}"
    return
  fi
  [ -r "${signer[1]}" ] || unable "cannot read the key ${signer[1]}"
  [ -n "${COSIGN_PASSWORD+x}" ] || unable "the passphrase of ${signer[1]} is missing: set COSIGN_PASSWORD, empty if it has none"
  cosign public-key --key "${signer[1]}" >"$scratch/own.pub" 2>"$scratch/log" ||
    wrong "cannot open the key ${signer[1]}: a wrong passphrase in COSIGN_PASSWORD? $(last_line "$scratch/log")"
  trust=(--key "$scratch/own.pub")
  read_keys "$scratch/own.pub"
}

# the user's name and password where only this run's programs read them
read_credentials() {
  [ -n "${REGISTRY_PASSWORD:-}" ] || return 0
  local host=${registry%%/*}
  (
    umask 077
    printf '{"auths": {"%s": {"auth": "%s"}}}\n' "$host" \
      "$(printf '%s:%s' "${REGISTRY_USER:-}" "$REGISTRY_PASSWORD" | base64 -w 0)" >"$scratch/config.json"
  )
  export REGISTRY_AUTH_FILE=$scratch/config.json DOCKER_CONFIG=$scratch
}

# sets version, registry, and the parallel lists repositories, digests, tags and sources
read_release() {
  local name digest
  repositories=() digests=() tags=() sources=()
  version=$(sed -nE '1s|.*:v([^@]+)@.*|\1|p' "$directory/images-digests.txt")
  local made_for
  made_for=$(sed -nE '1s|(.*)/[^/]+:v[^@]+@.*|\1|p' "$directory/images-digests.txt")
  if [ -z "$version" ] || [ -z "$made_for" ]; then wrong "$directory/images-digests.txt names no image"; fi
  if [ -z "$registry" ]; then
    case $made_for in
      localhost/*)
        wrong "this release was made to be published nowhere ($made_for): fill build/release/published.toml and make it" \
          "again (docs/publishing.md), or try it with --registry PREFIX"
        ;;
    esac
    registry=$made_for
  fi
  registry=${registry%/}
  if [ -e "$directory/$NAME-$version.dirty-images.tar" ] && ! is_local "$registry"; then
    wrong "this is a trial (its files are .dirty): commit everything, and make a release without --dirty"
  fi
  mkdir "$scratch/images"
  tar -C "$scratch/images" -xf "$(echo "$directory/$NAME-$version"*-images.tar)"
  while IFS=@ read -r name digest; do
    repositories+=("$registry/$(sed -E 's|.*/([^/:]+):.*|\1|' <<<"$name")")
    digests+=("$digest")
    tags+=("v$version")
    sources+=("oci:$scratch/images:$name")
  done <"$directory/images-digests.txt"
  digest=$("$python" "$here/chart.py" "$(echo "$directory/$NAME-chart-$version"*.tgz)" "$scratch/chart")
  repositories+=("$registry/charts/$NAME")
  digests+=("$digest")
  tags+=("$version")
  sources+=("oci:$scratch/chart")
}

# tags_of REPOSITORY: its tags; none where it is not there yet
tags_of() {
  if skopeo list-tags "$(tls_of "$1")" "docker://$1" >"$scratch/tags" 2>"$scratch/log"; then
    jq -r '(.Tags // [])[]' "$scratch/tags"
  elif ! grep -qiE 'name unknown|NAME_UNKNOWN|not found|404' "$scratch/log"; then
    wrong "cannot ask $1 for its tags: $(last_line "$scratch/log")"
  fi
}

# newest TAGS BEGINNING: whether none of the tags that begin so is of a newer version than ours
newest() {
  local highest
  highest=$(printf '%s\n' "$1" "v$version" | grep -E "^$2" | grep -xE 'v[0-9]+[.][0-9]+[.][0-9]+' | sort -V | tail -n 1)
  [ "$highest" = "v$version" ]
}

# sets moving to the tags besides the version's; refuses a version that is there with other bytes
make_plan() {
  local i reference listed versions='' minor
  for i in "${!digests[@]}"; do
    reference=${repositories[i]}:${tags[i]}
    listed=$(tags_of "${repositories[i]}")
    versions+=$listed$'\n'
    if grep -qxF "${tags[i]}" <<<"$listed"; then
      read_manifest "$reference" "$scratch/manifest" || wrong "cannot read $reference: $(last_line "$scratch/log")"
      if [ "$(digest_of "$scratch/manifest")" != "${digests[i]}" ]; then
        wrong "$reference was published with other bytes ($(digest_of "$scratch/manifest")): a version is published once;" \
          "make the next one"
      fi
      echo "is there: $reference"
    else
      echo "push, sign, check, then tag: $reference (${digests[i]})"
    fi
  done
  moving=()
  minor=v${version%.*}
  if grep -qxE '[0-9]+[.][0-9]+[.][0-9]+' <<<"$version"; then
    if newest "$versions" "${minor}[.]"; then moving+=("$minor"); fi
    if newest "$versions" v; then moving+=(latest); fi
  fi
  echo "then lead to it: ${moving[*]:-nothing, there is a newer version}"
  if [ -n "$pages" ]; then
    page=$pages/releases/v$version
    if [ -e "$page" ] && ! cmp -s "$directory/SHA256SUMS" "$page/SHA256SUMS"; then
      wrong "$page has another release of this version: a version is published once; make the next one"
    fi
    notes=$(awk -v wanted="$version" '/^## / { found = ($2 == wanted); next } found' "$here/../../CHANGELOG.md")
    [ -n "${notes//[[:space:]]/}" ] || wrong "CHANGELOG.md says nothing about $version: it is the text of the release's page"
    echo "write the page: $page"
    if [ -n "${APT_KEY:-}" ]; then
      need gpg gpgv dpkg-deb
      # with a signature, which nobody sees yet
      planned=$(write_packages --check) || wrong "nothing was published: the packages cannot be signed with the key $APT_KEY," \
        "which APT_KEY names, or not added to $pages/apt"
      echo "add the packages: $planned"
    else
      echo "no packages for apt: APT_KEY names no key"
    fi
  fi
}

copy() { # SOURCE TARGET
  local words=()
  case $1 in docker:*) words=("--src-$(tls_of "$registry" | cut -c 3-)") ;; esac
  skopeo copy --quiet --all --preserve-digests "${words[@]}" "--dest-$(tls_of "$registry" | cut -c 3-)" "$1" "docker://$2" \
    >"$scratch/log" 2>&1 || wrong "cannot push $2: $(last_line "$scratch/log"); run this again"
}

# lead REPOSITORY DIGEST TAG
lead() {
  if read_manifest "$1:$3" "$scratch/manifest" && [ "$(digest_of "$scratch/manifest")" = "$2" ]; then return; fi
  copy "docker://$1@$2" "$1:$3"
  echo "$1:$3 -> $2"
}

write_page() {
  [ -n "$pages" ] || return 0
  mkdir -p "$pages/releases"
  if [ ! -e "$page" ]; then
    rm -rf "$pages/releases/.v$version.new"
    mkdir "$pages/releases/.v$version.new"
    cp -R "$directory/." "$pages/releases/.v$version.new"
    mv -T "$pages/releases/.v$version.new" "$page"
    echo "$page: written"
  fi
  if ! printf '%s\n' "$notes" | cmp -s - "$page.md"; then
    printf '%s\n' "$notes" >"$pages/releases/.v$version.md.new"
    mv -f "$pages/releases/.v$version.md.new" "$page.md"
  fi
  case " ${moving[*]} " in
    *" latest "*)
      if [ "$(readlink "$pages/releases/latest")" != "v$version" ]; then
        ln -sfn "v$version" "$pages/releases/.latest.new"
        mv -fT "$pages/releases/.latest.new" "$pages/releases/latest"
      fi
      ;;
  esac
}

write_packages() { # [--check]
  if [ -z "$pages" ] || [ -z "${APT_KEY:-}" ]; then return; fi
  local address
  address=$(sed -nE 's/^apt = "(.*)"$/\1/p' "$here/published.toml")
  "$python" "$here/apt.py" "$@" --key "$APT_KEY" ${address:+--address "$address"} "$pages/apt" "$directory"/*.deb
}

parse "$@"
make_scratch
need skopeo cosign jq openssl sha256sum
read_trust
"$here/verify.sh" "${trust[@]}" "$directory" >/dev/null || exit
read_release
read_credentials
make_plan
if [ -n "$dry" ]; then exit; fi
for i in "${!digests[@]}"; do
  if ! read_manifest "${repositories[i]}@${digests[i]}" "$scratch/manifest"; then
    copy "${sources[i]}" "${repositories[i]}@${digests[i]}"
    echo "${repositories[i]}@${digests[i]}: pushed"
  fi
done
"$here/sign.sh" "${signer[@]}" --registry "$registry" "$directory"
for i in "${!digests[@]}"; do
  "$here/verify.sh" "${trust[@]}" "${repositories[i]}@${digests[i]}" || exit
done
for i in "${!digests[@]}"; do
  lead "${repositories[i]}" "${digests[i]}" "${tags[i]}"
  case ${repositories[i]} in */charts/*) continue ;; esac
  for tag in "${moving[@]}"; do lead "${repositories[i]}" "${digests[i]}" "$tag"; done
done
write_packages
write_page
