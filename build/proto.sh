#!/bin/sh
# Regenerate the messages (NAME_pb2.py) of every NAME.proto; run it after a change there, with the project's Python.
#
#   build/proto.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
for proto in cni_calico/datastore/etcd/etcd.proto cni_calico/cnidataplane/dataplane.proto \
  cni_calico/flows/export/goldmane.proto cni_calico/nodeagent/sync/felix.proto cni_calico/alp/envoy.proto; do
  directory=$(dirname "$proto")
  "$python" -m grpc_tools.protoc "-I$directory" "--python_out=$directory" "--pyi_out=$directory" "$(basename "$proto")"
  stub=${proto%.proto}_pb2.pyi
  stubs=$(cat "$stub")
  printf '# mypy: disable-error-code="type-arg"\n%s\n' "$stubs" >"$stub"
done
