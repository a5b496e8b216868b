{{- define "cni-calico.image" -}}
{{- $root := index . 0 }}{{ $part := index . 1 -}}
{{ $part.registry }}/{{ $part.image }}:{{ $root.Values.version }}
{{- end }}

{{- define "cni-calico.backend" -}}
{{- if eq .Values.network "none" -}} none
{{- else if or .Values.vxlan (eq .Values.installation.calicoNetwork.bgp "Disabled") -}} vxlan
{{- else -}} bird
{{- end }}
{{- end }}

{{- define "cni-calico.mtu" -}}
{{ .Values.installation.calicoNetwork.mtu | default .Values.mtu | int }}
{{- end }}

{{- /* The relays' Service; none without relays. */}}
{{- define "cni-calico.relays" -}}
{{- if not .Values.typha.enabled -}} none
{{- else if eq .Values.datastore "etcd" }}{{ fail "typha.enabled: relays are for the datastore kubernetes; with etcd use etcd's own grpc-proxy (docs/scale.md)" }}
{{- else -}} calico-typha
{{- end }}
{{- end }}

{{- /* The pool of a family, as YAML; {} without one. */}}
{{- define "cni-calico.pool4" -}}
{{- $found := list }}
{{- range .Values.installation.calicoNetwork.ipPools }}{{ if not (contains ":" .cidr) }}{{ $found = append $found . }}{{ end }}{{ end }}
{{- if gt (len $found) 1 }}{{ fail "installation.calicoNetwork.ipPools: at most one IPv4 pool; make others with calicoctl" }}{{ end }}
{{- first $found | default dict | toYaml }}
{{- end }}

{{- define "cni-calico.pool6" -}}
{{- $found := list }}
{{- range .Values.installation.calicoNetwork.ipPools }}{{ if contains ":" .cidr }}{{ $found = append $found . }}{{ end }}{{ end }}
{{- if gt (len $found) 1 }}{{ fail "installation.calicoNetwork.ipPools: at most one IPv6 pool; make others with calicoctl" }}{{ end }}
{{- first $found | default dict | toYaml }}
{{- end }}

{{- define "cni-calico.ipip" -}}
{{- $default := eq (include "cni-calico.backend" .) "vxlan" | ternary "VXLAN" "IPIP" }}
{{- get (dict "IPIP" "Always" "IPIPCrossSubnet" "CrossSubnet") ((include "cni-calico.pool4" . | fromYaml).encapsulation | default $default) | default "Never" }}
{{- end }}

{{- define "cni-calico.vxlan" -}}
{{- $default := eq (include "cni-calico.backend" .) "vxlan" | ternary "VXLAN" "IPIP" }}
{{- get (dict "VXLAN" "Always" "VXLANCrossSubnet" "CrossSubnet") ((include "cni-calico.pool4" . | fromYaml).encapsulation | default $default) | default "Never" }}
{{- end }}

{{- define "cni-calico.poolVariables" -}}
{{- $prefix := index . 0 }}{{ $pool := index . 1 }}
{{- if $pool }}
- name: {{ $prefix }}_CIDR
  value: {{ $pool.cidr | quote }}
{{- with $pool.blockSize }}
- name: {{ $prefix }}_BLOCK_SIZE
  value: {{ . | int | quote }}
{{- end }}
{{- with $pool.natOutgoing }}
- name: {{ $prefix }}_NAT_OUTGOING
  value: {{ eq . "Enabled" | quote }}
{{- end }}
{{- with $pool.nodeSelector }}
- name: {{ $prefix }}_NODE_SELECTOR
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "cni-calico.detection" -}}
{{- with .Values.installation.calicoNetwork.nodeAddressAutodetectionV4 }}
{{- if .firstFound }}first-found
{{- else if .kubernetes }}kubernetes-internal-ip
{{- else if .interface }}interface={{ .interface }}
{{- else if .skipInterface }}skip-interface={{ .skipInterface }}
{{- else if .canReach }}can-reach={{ .canReach }}
{{- else if .cidrs }}cidr={{ join "," .cidrs }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The variables of calico-node that the manifests do not have. */}}
{{- define "cni-calico.variables" -}}
{{- $pool6 := include "cni-calico.pool6" . | fromYaml }}
{{- include "cni-calico.poolVariables" (list "CALICO_IPV4POOL" (include "cni-calico.pool4" . | fromYaml)) }}
{{- include "cni-calico.poolVariables" (list "CALICO_IPV6POOL" $pool6) }}
{{- if $pool6 }}
- name: IP6
  value: autodetect
- name: CALICO_IPV6POOL_VXLAN
  value: {{ get (dict "VXLAN" "Always" "VXLANCrossSubnet" "CrossSubnet") ($pool6.encapsulation | default "None") | default "Never" }}
{{- end }}
{{- with include "cni-calico.detection" . }}
- name: IP_AUTODETECTION_METHOD
  value: {{ . | quote }}
{{- end }}
{{- with .Values.node.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "cni-calico.etcdSecrets" -}}
{{- $tls := .Values.etcd.tls }}
{{- if or $tls.crt $tls.ca $tls.key }}
etcd-key: {{ $tls.key | quote }}
etcd-cert: {{ $tls.crt | quote }}
etcd-ca: {{ $tls.ca | quote }}
{{- else -}} {}
{{- end }}
{{- end }}
