{{- /* The digest of a part's own image, or that of the agent's where it is the same. */}}
{{- define "cni-calico.image" -}}
{{- $root := index . 0 }}{{ $part := index . 1 }}
{{- $digest := $part.digest | default $root.Values.image.digest }}
{{- if and $root.Values.image.digest (not $part.digest) (ne $part.image $root.Values.node.image) }}
{{- fail (printf "image.digest is that of the image %s, and %s is another: give its digest beside it, as cni.digest, kubeControllers.digest, typha.digest or webhooks.digest" $root.Values.node.image $part.image) }}
{{- end -}}
{{ $part.registry }}/{{ $part.image }}:{{ $root.Values.version }}{{ with $digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The distribution's entry of distributions.yaml, as YAML, once it is sure that it suits. */}}
{{- define "cni-calico.distribution" -}}
{{- $all := .Files.Get "distributions.yaml" | fromYaml }}
{{- $provider := .Values.installation.kubernetesProvider }}
{{- $type := .Values.installation.cni.type }}
{{- range $all.distributions }}
{{- if and (eq $type "GKE") (eq .provider "GKE") }}{{ fail (printf "installation.cni.type: %s" .refused) }}{{ end }}
{{- if eq .provider $provider }}
{{- with .refused }}{{ fail (printf "installation.kubernetesProvider: %s" .) }}{{ end }}
{{- if and $provider (ne $type "Calico") (not (has $type (.cniTypes | default list))) }}
{{- fail (printf "installation.cni.type: %s is not a network of %s; with kubernetesProvider %s use %s" $type .title $provider (append (.cniTypes | default list) "Calico" | join " or ")) }}
{{- end }}
{{- toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whether the pods' network is ours: true, or empty for no. */}}
{{- define "cni-calico.ours" -}}
{{- if eq .Values.installation.cni.type "Calico" -}} true
{{- else if eq .Values.datastore "etcd" }}{{ fail "installation.cni.type: policies beside another network are for the datastore kubernetes" }}
{{- else if .Values.installation.calicoNetwork.ipPools }}{{ fail (printf "installation.calicoNetwork.ipPools: with cni.type %s the addresses are that network's, and there are no pools" .Values.installation.cni.type) }}
{{- end }}
{{- end }}

{{- /* Of the distribution, unless one of the two spellings says another. */}}
{{- define "cni-calico.directory" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}
{{- $long := get $root.Values.installation.cni $name }}{{ $short := get $root.Values.cni $name }}
{{- if and $long $short (ne $long $short) }}
{{- fail (printf "installation.cni.%s and cni.%s are two spellings of one value and differ (%s, %s): give one of them" $name $name $long $short) }}
{{- end }}
{{- $long | default $short | default (get (include "cni-calico.distribution" $root | fromYaml) $name) }}
{{- end }}

{{- /* Where nobody says anything: as the distribution's entry, or as a pool's encapsulation needs it. */}}
{{- define "cni-calico.backend" -}}
{{- $bgp := .Values.installation.calicoNetwork.bgp }}
{{- $wanted := (include "cni-calico.pool4" . | fromYaml).encapsulation | default (include "cni-calico.distribution" . | fromYaml).encapsulation }}
{{- if eq .Values.network "none" -}} none
{{- else if not (include "cni-calico.ours" .) -}} none
{{- else if or .Values.vxlan (eq $bgp "Disabled") -}} vxlan
{{- else if and .Values.installation.kubernetesProvider (not $bgp) (hasPrefix "VXLAN" $wanted) -}} vxlan
{{- else -}} bird
{{- end }}
{{- end }}

{{- define "cni-calico.mtu" -}}
{{- $long := .Values.installation.calicoNetwork.mtu | int }}{{ $short := .Values.mtu | int }}
{{- if and $long $short (ne $long $short) }}
{{- fail (printf "installation.calicoNetwork.mtu and mtu are two spellings of one value and differ (%d, %d): give one of them" $long $short) }}
{{- end }}
{{- $long | default $short }}
{{- end }}

{{- /* Whether pods may forward packets: true, or empty for no. */}}
{{- define "cni-calico.forwarding" -}}
{{- $default := ternary "Enabled" "Disabled" (get (include "cni-calico.distribution" . | fromYaml) "forwarding" | default false) }}
{{- if eq (.Values.installation.calicoNetwork.containerIPForwarding | default $default) "Enabled" }}true{{ end }}
{{- end }}

{{- /* The agent's, where none is given: away from nodes that cannot run it. */}}
{{- define "cni-calico.nodeAffinity" -}}
{{- $avoid := (include "cni-calico.distribution" . | fromYaml).avoid }}
{{- if .Values.node.affinity }}{{ toYaml .Values.node.affinity }}
{{- else if $avoid }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - key: {{ $avoid.label }}
            operator: NotIn
            values: [{{ $avoid.value }}]
{{- else -}} {}
{{- end }}
{{- end }}

{{- /* Lines of the conflist: what stands there by default is the manifests'. */}}
{{- define "cni-calico.cniVersion" -}}
{{- $wanted := .Values.installation.cni.specVersion }}
{{- printf "%q: %q," "cniVersion" (ternary "1.0.0" $wanted (eq $wanted "Auto")) }}
{{- end }}

{{- define "cni-calico.pluginKeys" -}}
{{- $log := .Values.installation.logging.cni }}
{{- printf "%q: %q," "log_level" (lower $log.logSeverity) }}
{{- with $log.logFileMaxSize }}{{ printf "\n%q: %s," "log_file_max_size" (trimSuffix "Mi" .) }}{{ end }}
{{- with $log.logFileMaxAgeDays }}{{ printf "\n%q: %d," "log_file_max_age" (int .) }}{{ end }}
{{- with $log.logFileMaxCount }}{{ printf "\n%q: %d," "log_file_max_count" (int .) }}{{ end }}
{{- with .Values.installation.calicoNetwork.linuxPolicySetupTimeoutSeconds | int }}{{ printf "\n%q: %d," "policy_setup_timeout_seconds" . }}{{ end }}
{{- end }}

{{- define "cni-calico.hostLocal" -}}
{{- if include "cni-calico.pool6" . | fromYaml -}}
"ipam": {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]},
{{- else -}}
"ipam": {"type": "host-local", "subnet": "usePodCidr"},
{{- end }}
{{- end }}

{{- define "cni-calico.tuning" -}}
{{- $sysctl := dict }}
{{- range .Values.installation.calicoNetwork.sysctl }}{{ $_ := set $sysctl .key .value }}{{ end -}}
{"type": "tuning", "sysctl": {{ toJson $sysctl }}},
{{- end }}

{{- define "cni-calico.moreVariables" -}}
{{- if . }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* The variables of install-cni that the manifests do not have. */}}
{{- define "cni-calico.installVariables" -}}
{{- $bin := include "cni-calico.directory" (list . "binDir") }}{{ $conf := include "cni-calico.directory" (list . "confDir") }}
{{- if ne $bin "/opt/cni/bin" }}
- name: CNI_BIN_DIR
  value: {{ $bin | quote }}
{{- end }}
{{- if ne $conf "/etc/cni/net.d" }}
- name: CNI_NET_DIR
  value: {{ $conf | quote }}
{{- end }}
{{- if eq .Values.installation.cni.installMode "CalicoOnly" }}
- name: SKIP_CNI_BINARIES
  value: bandwidth,host-local,loopback,portmap,tuning
{{- end }}
{{- end }}

{{- /* The API group of the records, "" with etcd: as given, else that of the cluster, as every program finds it out. */}}
{{- define "cni-calico.apiGroup" -}}
{{- $native := .Capabilities.APIVersions.Has "projectcalico.org/v3" }}
{{- $custom := .Capabilities.APIVersions.Has "crd.projectcalico.org/v1" }}
{{- $given := .Values.apiGroup }}
{{- if eq .Values.datastore "etcd" }}
{{- if $given }}{{ fail (printf "apiGroup: %s: with datastore: etcd no records are in Kubernetes" $given) }}{{ end }}
{{- else if and $given (ternary (and $custom (not $native)) (and $native (not $custom)) (eq $given "projectcalico.org/v3")) }}{{ fail (printf "apiGroup: %s: this cluster's records are in the other group, and its definitions beside them would make them two datastores (docs/kubernetes.md)" $given) }}
{{- else if $given -}} {{ $given }}
{{- else if and $native (not $custom) -}} projectcalico.org/v3
{{- else -}} crd.projectcalico.org/v1
{{- end }}
{{- end }}

{{- /* The version in which the cluster serves admission policies that change objects; "" if in none. */}}
{{- define "cni-calico.mutating" -}}
{{- $has := .Capabilities.APIVersions }}
{{- range list "v1alpha1" "v1beta1" "v1" | reverse }}
{{- $version := printf "admissionregistration.k8s.io/%s" . }}
{{- if $has.Has (printf "%s/MutatingAdmissionPolicy" $version) }}{{ $version }}{{ break }}{{ end }}
{{- end }}
{{- end }}

{{- /* The relays' Service; none without relays. */}}
{{- define "cni-calico.relays" -}}
{{- if not .Values.typha.enabled -}} none
{{- else if eq .Values.datastore "etcd" }}{{ fail "typha.enabled: relays are for the datastore kubernetes; with etcd use etcd's own grpc-proxy (docs/scale.md)" }}
{{- else -}} calico-typha
{{- end }}
{{- end }}

{{- /* Whether rights on tiers are checked by our webhook. */}}
{{- define "cni-calico.webhooks" -}}
{{- if not .Values.webhooks.enabled -}} false
{{- else if or (eq .Values.datastore "etcd") (ne (include "cni-calico.apiGroup" .) "projectcalico.org/v3") -}}
{{ fail "webhooks.enabled: the webhook is for records in projectcalico.org/v3; with others Calico's API server checks rights on tiers, or nobody does (docs/kubernetes.md)" }}
{{- else -}} true
{{- end }}
{{- end }}

{{- /* The pool of a family, as YAML; {} without one. */}}
{{- define "cni-calico.pool4" -}}
{{- $found := list }}
{{- range .Values.installation.calicoNetwork.ipPools }}{{ if not (contains ":" .cidr) }}{{ $found = append $found . }}{{ end }}{{ end }}
{{- if gt (len $found) 1 }}{{ fail "installation.calicoNetwork.ipPools: at most one IPv4 pool; make others with calicoctl" }}{{ end }}
{{- first $found | default dict | toYaml }}
{{- end }}

{{- /* What the agent is told of the first IPv4 pool: the distribution's range where nobody else would tell it. */}}
{{- define "cni-calico.firstPool4" -}}
{{- $row := include "cni-calico.distribution" . | fromYaml }}
{{- if or .Values.installation.calicoNetwork.ipPools $row.inKubeadmConfig (not $row.range) (not (include "cni-calico.ours" .)) }}
{{- include "cni-calico.pool4" . }}
{{- else -}}
cidr: {{ $row.range }}
{{- end }}
{{- end }}

{{- define "cni-calico.pool6" -}}
{{- $found := list }}
{{- range .Values.installation.calicoNetwork.ipPools }}{{ if contains ":" .cidr }}{{ $found = append $found . }}{{ end }}{{ end }}
{{- if gt (len $found) 1 }}{{ fail "installation.calicoNetwork.ipPools: at most one IPv6 pool; make others with calicoctl" }}{{ end }}
{{- first $found | default dict | toYaml }}
{{- end }}

{{- /* Of the first IPv4 pool. */}}
{{- define "cni-calico.encapsulation" -}}
{{- $default := eq (include "cni-calico.backend" .) "vxlan" | ternary "VXLAN" (include "cni-calico.distribution" . | fromYaml).encapsulation }}
{{- (include "cni-calico.pool4" . | fromYaml).encapsulation | default $default }}
{{- end }}

{{- define "cni-calico.ipip" -}}
{{- get (dict "IPIP" "Always" "IPIPCrossSubnet" "CrossSubnet") (include "cni-calico.encapsulation" .) | default "Never" }}
{{- end }}

{{- define "cni-calico.vxlan" -}}
{{- get (dict "VXLAN" "Always" "VXLANCrossSubnet" "CrossSubnet") (include "cni-calico.encapsulation" .) | default "Never" }}
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
{{- $default := (include "cni-calico.distribution" . | fromYaml).detection }}
{{- with .Values.installation.calicoNetwork.nodeAddressAutodetectionV4 | default $default }}
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
{{- include "cni-calico.poolVariables" (list "CALICO_IPV4POOL" (include "cni-calico.firstPool4" . | fromYaml)) }}
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
{{- if eq .Values.installation.cni.ipam.type "HostLocal" }}
- name: USE_POD_CIDR
  value: "true"
{{- end }}
{{- if not (include "cni-calico.ours" .) }}
{{- $network := get (.Files.Get "distributions.yaml" | fromYaml).networks .Values.installation.cni.type }}
- name: CALICO_MANAGE_CNI
  value: "false"
- name: NO_DEFAULT_POOLS
  value: "true"
- name: FELIX_INTERFACEPREFIX
  value: {{ $network.prefix | quote }}
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
