#!/bin/sh
# Makes an authority and a certificate for the relays, and prints what Kubernetes needs of them: Secret calico-typha-tls for
# the relays and ConfigMap calico-typha-ca for the agents. Run it again before the certificate ends (in ten years; another
# number of days may be given) and apply what it prints: agents and relays read the files again by themselves.
#
#   ./calico-typha-certificates.sh [DAYS] | kubectl apply -f -
set -eu
days=${1:-3650}
namespace=kube-system
service=calico-typha
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
umask 077
{
  openssl ecparam -name prime256v1 -genkey -noout -out ca.key
  openssl req -x509 -new -key ca.key -subj "/CN=$service-ca" -days "$days" -out ca.crt \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
  openssl ecparam -name prime256v1 -genkey -noout -out tls.key
  openssl req -new -key tls.key -subj "/CN=typha-server" -out tls.csr
  printf 'subjectAltName=DNS:%s.%s.svc,DNS:%s\nextendedKeyUsage=serverAuth\n' "$service" "$namespace" "$service" >names
  openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile names -out tls.crt
} 2>errors >&2 || { cat errors >&2; exit 1; }
encode() { base64 -w 0 "$1"; }
cat <<END
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata:
  name: calico-typha-tls
  namespace: $namespace
data:
  tls.crt: $(encode tls.crt)
  tls.key: $(encode tls.key)
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: calico-typha-ca
  namespace: $namespace
data:
  ca.crt: |
$(sed 's/^/    /' ca.crt)
END
