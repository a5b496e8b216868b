#!/bin/sh
# Regenerate cni_calico/datastore/etcd/etcd_pb2.py from etcd.proto; run it after a change there, with the project's Python.
#
#   build/proto.sh [PYTHON]
set -eu
cd "$(dirname "$0")/../cni_calico/datastore/etcd"
python=${1:-../../../.venv/bin/python}
"$python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. etcd.proto
stubs=$(cat etcd_pb2.pyi)
printf '# mypy: disable-error-code="type-arg"\n%s\n' "$stubs" >etcd_pb2.pyi
