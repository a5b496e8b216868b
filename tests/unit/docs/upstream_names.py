"""Every name that a user of upstream's v3.32 may have written down somewhere.

Rule: taken from upstream's own references (Felix's parameters, calico/node's and kube-controllers' environment, the CNI
plugin's configuration, calicoctl's help, the manifests, the tree of the node image), not from this project's code.
"""

from __future__ import annotations

FELIX = """
UseInternalDataplaneDriver DataplaneDriver DataplaneWatchdogTimeout IgnoreLooseRPF
WireguardEnabled WireguardEnabledV6 WireguardListeningPort WireguardListeningPortV6 WireguardRoutingRulePriority
WireguardInterfaceName WireguardInterfaceNameV6 WireguardMTU WireguardMTUV6 WireguardHostEncryptionEnabled
WireguardPersistentKeepAlive WireguardThreadingEnabled
NFTablesMode
BPFEnabled BPFDisableUnprivileged BPFJITHardening BPFLogLevel BPFConntrackLogLevel BPFConntrackCleanupMode
BPFConntrackTimeouts BPFLogFilters BPFCTLBLogFilter BPFDataIfacePattern BPFL3IfacePattern
BPFConnectTimeLoadBalancingEnabled BPFConnectTimeLoadBalancing BPFHostNetworkedNATWithoutCTLB BPFExternalServiceMode
BPFDSROptoutCIDRs BPFKubeProxyIptablesCleanupEnabled BPFKubeProxyMinSyncPeriod BPFKubeProxyHealthzPort
BPFExtToServiceConnmark BPFPSNATPorts BPFMapSizeNATFrontend BPFMapSizeNATBackend BPFMapSizeNATAffinity
BPFMapSizeRoute BPFMapSizeConntrack BPFMapSizePerCPUConntrack BPFMapSizeConntrackScaling
BPFMapSizeConntrackCleanupQueue BPFMapSizeIPSets BPFMapSizeIfState BPFHostConntrackBypass BPFEnforceRPF
BPFPolicyDebugEnabled BPFForceTrackPacketsFromIfaces BPFDisableGROForIfaces BPFExcludeCIDRsFromNAT BPFRedirectToPeer
BPFAttachType BPFExportBufferSizeMB BPFProfiling BPFMaglevMaxEndpointsPerService BPFMaglevMaxServices
IstioAmbientMode IstioDSCPMark CgroupV2Path DebugBPFCgroupV2
DatastoreType FelixHostname EtcdAddr EtcdScheme EtcdKeyFile EtcdCertFile EtcdCaFile EtcdEndpoints
TyphaAddr TyphaK8sServiceName TyphaK8sNamespace TyphaReadTimeout TyphaWriteTimeout TyphaKeyFile TyphaCertFile
TyphaCAFile TyphaCN TyphaURISAN
Ipv6Support IptablesBackend RouteRefreshInterval InterfaceRefreshInterval DeviceRouteSourceAddress
DeviceRouteSourceAddressIPv6 DeviceRouteProtocol RemoveExternalRoutes ProgramClusterRoutes IPForwarding
IptablesRefreshInterval IptablesPostWriteCheckIntervalSecs IptablesLockTimeoutSecs IptablesLockProbeIntervalMillis
IptablesLockFilePath FeatureDetectOverride FeatureGates IpsetsRefreshInterval MaxIpsetSize XDPRefreshInterval
PolicySyncPathPrefix NetlinkTimeoutSecs MetadataAddr MetadataPort OpenstackRegion InterfacePrefix InterfaceExclude
ChainInsertMode DefaultEndpointToHostAction IptablesFilterAllowAction IptablesMangleAllowAction
IptablesFilterDenyAction LogPrefix LogActionRateLimit LogActionRateLimitBurst LogFilePath LogSeverityFile
LogSeverityScreen LogSeveritySys LogDebugFilenameRegex
VXLANEnabled VXLANPort VXLANVNI VXLANMTU VXLANMTUV6 IPv4VXLANTunnelAddr IPv6VXLANTunnelAddr VXLANTunnelMACAddr
VXLANTunnelMACAddrV6 IpInIpEnabled IpInIpMtu IpInIpTunnelAddr FloatingIPs WindowsManageFirewallRules
AllowVXLANPacketsFromWorkloads AllowIPIPPacketsFromWorkloads AWSSrcDstCheck ServiceLoopPrevention
WorkloadSourceSpoofing ReportingIntervalSecs ReportingTTLSecs EndpointReportingEnabled EndpointReportingDelaySecs
EndpointStatusPathPrefix IptablesMarkMask DisableConntrackInvalidCheck HealthEnabled HealthPort HealthHost
HealthTimeoutOverrides PrometheusMetricsEnabled PrometheusMetricsHost PrometheusMetricsPort PrometheusGoMetricsEnabled
PrometheusProcessMetricsEnabled PrometheusWireGuardMetricsEnabled PrometheusMetricsCAFile PrometheusMetricsCertFile
PrometheusMetricsKeyFile PrometheusMetricsClientAuth FailsafeInboundHostPorts FailsafeOutboundHostPorts
FlowLogsFlushInterval FlowLogsCollectorDebugTrace FlowLogsGoldmaneServer FlowLogsLocalReporter
FlowLogsPolicyEvaluationMode KubeNodePortRanges NATPortRange NATOutgoingAddress NATOutgoingExclusions
UsageReportingEnabled UsageReportingInitialDelaySecs UsageReportingIntervalSecs ClusterGUID ClusterType CalicoVersion
ExternalNodesCIDRList DebugMemoryProfilePath DebugCPUProfilePath DebugDisableLogDropping
DebugSimulateCalcGraphHangAfter DebugSimulateDataplaneHangAfter DebugSimulateDataplaneApplyDelay DebugPanicAfter
DebugSimulateDataRace DebugHost DebugPort RouteSource RouteTableRange RouteTableRanges RouteSyncDisabled
IPv4NormalRoutePriority IPv4ElevatedRoutePriority IPv6NormalRoutePriority IPv6ElevatedRoutePriority
LiveMigrationRouteConvergenceTime IptablesNATOutgoingInterfaceFilter SidecarAccelerationEnabled XDPEnabled
GenericXDPEnabled Variant GoGCThreshold GoMemoryLimitMB GoMaxProcs MTUIfacePattern NftablesRefreshInterval
NftablesFilterAllowAction NftablesMangleAllowAction NftablesFilterDenyAction NftablesMarkMask RequireMTUFile
"""

EXECUTABLES = """
calico calico-ipam calico-node calicoctl kubectl-calico kube-controllers check-status wrapper calico-typha
calico-apiserver dikastes flexvol csi-driver node-driver-registrar goldmane whisker guardian key-cert-provisioner
operator host-local portmap bandwidth loopback tuning flannel bird bird6 birdcl birdcl6 sv restart-calico-confd
start_runit versions mountns bpftool /install-cni.sh /opt/cni/bin/install
"""

FLAGS = """
-v -t -upgrade -felix -bpf -init -best-effort -startup -shutdown -monitor-addresses -allocate-tunnel-addrs
-allocate-tunnel-addrs-run-once -monitor-token -node-services -complete-startup -felix-live -bird-live -bird6-live
-bird-ready -bird6-ready -felix-ready -threshold-time -status-reporter -show-status -flows -confd -confd-run-once
-confd-keep-stage-file -confd-confdir -hostpath-init -version -status-file
"""

ENVIRONMENT = """
NAMESPACE
CALICO_DATASTORE_TYPE CALICO_ETCD_ENDPOINTS CALICO_ETCD_DISCOVERY_SRV CALICO_ETCD_USERNAME CALICO_ETCD_PASSWORD
CALICO_ETCD_KEY_FILE CALICO_ETCD_CERT_FILE CALICO_ETCD_CA_CERT_FILE CALICO_KUBECONFIG CALICO_K8S_API_ENDPOINT
CALICO_K8S_API_TOKEN CALICO_K8S_KEY_FILE CALICO_K8S_CERT_FILE CALICO_K8S_CA_FILE CALICO_K8S_CURRENT_CONTEXT
NODENAME CALICO_NODENAME_FILE CALICO_SHUTDOWN_TIMESTAMP_FILE HOSTNAME IP IP6
IP_AUTODETECTION_METHOD IP6_AUTODETECTION_METHOD AUTODETECT_POLL_INTERVAL DISABLE_NODE_IP_CHECK
AS CALICO_ROUTER_ID CALICO_K8S_NODE_REF CALICO_ADVERTISE_CLUSTER_IPS CLUSTER_TYPE
WAIT_FOR_DATASTORE NODE_USER_ID CALICO_NETWORKING_BACKEND CALICO_NETWORKING CALICO_DISABLE_FELIX CALICO_MANAGE_CNI
CALICO_CNI_SERVICE_ACCOUNT USE_POD_CIDR NO_DEFAULT_POOLS
CALICO_IPV4POOL_CIDR CALICO_IPV4POOL_BLOCK_SIZE CALICO_IPV4POOL_IPIP CALICO_IPV4POOL_VXLAN CALICO_IPV4POOL_NAT_OUTGOING
CALICO_IPV4POOL_NODE_SELECTOR CALICO_IPV4POOL_DISABLE_BGP_EXPORT
CALICO_IPV6POOL_CIDR CALICO_IPV6POOL_BLOCK_SIZE CALICO_IPV6POOL_VXLAN CALICO_IPV6POOL_NAT_OUTGOING
CALICO_IPV6POOL_NODE_SELECTOR CALICO_IPV6POOL_DISABLE_BGP_EXPORT
CALICO_STARTUP_LOGLEVEL CALICO_DISABLE_FILE_LOGGING CALICO_EARLY_NETWORKING BGP_LOGSEVERITYSCREEN
CALICO_LIBNETWORK_ENABLED CALICO_API_GROUP
DATASTORE_TYPE ETCD_ENDPOINTS ETCD_DISCOVERY_SRV ETCD_AUTHORITY ETCD_SCHEME ETCD_USERNAME ETCD_PASSWORD ETCD_KEY_FILE
ETCD_CERT_FILE ETCD_CA_CERT_FILE KUBECONFIG K8S_API_ENDPOINT K8S_KEY_FILE K8S_CERT_FILE K8S_CA_FILE K8S_API_TOKEN
K8S_INSECURE_SKIP_TLS_VERIFY K8S_DISABLE_NODE_POLL K8S_CLIENT_QPS K8S_CURRENT_CONTEXT KUBERNETES_SERVICE_HOST
KUBERNETES_SERVICE_PORT
CNI_NET_DIR CNI_CONF_NAME CNI_OLD_CONF_NAME CNI_NETWORK_CONFIG CNI_NETWORK_CONFIG_FILE SKIP_CNI_BINARIES
UPDATE_CNI_BINARIES SLEEP TLS_ASSETS_DIR CNI_MTU REQUIRE_MTU_FILE KUBERNETES_NODE_NAME KUBERNETES_SERVICE_PROTOCOL
SKIP_TLS_VERIFY LOG_LEVEL LOG_FILE_PATH LOG_FILE_MAX_SIZE LOG_FILE_MAX_AGE LOG_FILE_MAX_COUNT
ENABLED_CONTROLLERS RECONCILER_PERIOD COMPACTION_PERIOD HEALTH_ENABLED SYNC_NODE_LABELS AUTO_HOST_ENDPOINTS
WORKLOAD_ENDPOINT_WORKERS PROFILE_WORKERS POLICY_WORKERS NODE_WORKERS DEBUG_USE_SHORT_POLL_INTERVALS
FLANNEL_NETWORK FLANNEL_DAEMONSET_NAME FLANNEL_MTU FLANNEL_IP_MASQ FLANNEL_SUBNET_LEN FLANNEL_ANNOTATION_PREFIX
FLANNEL_VNI FLANNEL_PORT FLANNEL_SUBNET_ENV CALICO_DAEMONSET_NAME CNI_CONFIG_DIR POD_NODE_NAME DEBUG_WAIT_BEFORE_EXIT
DEBUG_WAIT_BEFORE_START DEFAULT_IPPOOL_SIZE
GOGC GOMEMLIMIT GOMAXPROCS
K8S_POD_NAME K8S_POD_NAMESPACE K8S_POD_UID K8S_POD_INFRA_CONTAINER_ID CNI_TEST_NAMESPACE IgnoreUnknown
"""

# of Typha, without TYPHA_
TYPHA = """
DatastoreType EtcdAddr EtcdScheme EtcdKeyFile EtcdCertFile EtcdCaFile EtcdEndpoints LogFilePath LogSeverityFile
LogSeverityScreen LogSeveritySys HealthEnabled HealthHost HealthPort PrometheusMetricsEnabled PrometheusMetricsHost
PrometheusMetricsPort PrometheusGoMetricsEnabled PrometheusProcessMetricsEnabled PrometheusMetricsCAFile
PrometheusMetricsCertFile PrometheusMetricsKeyFile PrometheusMetricsClientAuth SnapshotCacheMaxBatchSize
ServerMaxMessageSize ServerMaxFallBehindSecs ServerNewClientFallBehindGracePeriod ServerMinBatchingAgeThresholdSecs
ServerPingIntervalSecs ServerPongTimeoutSecs ServerHandshakeTimeoutSecs ServerPort ServerHost ServerKeyFile
ServerCertFile CAFile ClientCN ClientURISAN DebugMemoryProfilePath DebugDisableLogDropping DebugHost DebugPort
ConnectionRebalancingMode ConnectionDropIntervalSecs ShutdownTimeoutSecs ShutdownConnectionDropIntervalMaxSecs
MaxConnectionsUpperLimit MaxConnectionsLowerLimit K8sServicePollIntervalSecs K8sNamespace K8sServiceName K8sPortName
"""

# how confd finds Typha; each with each of its prefixes
CONFD = [
    f"{prefix}_TYPHA{name}"
    for prefix in ("CONFD", "CALICO")
    for name in (
        *("ADDR", "K8SSERVICENAME", "K8SNAMESPACE", "READTIMEOUT", "WRITETIMEOUT"),
        *("KEYFILE", "CERTFILE", "CAFILE", "CN", "URISAN"),
    )
]

# of the network configuration; what stands in an object is written with the object's key
KEYS = """
cniVersion name type mode vxlan_mac_prefix vxlan_vni ipam ipam.type ipam.subnet ipam.assign_ipv4 ipam.assign_ipv6
ipam.ipv4_pools ipam.ipv6_pools args mtu num_queues nodename nodename_file ipam_lock_file nodename_file_optional
datastore_type etcd_endpoints etcd_discovery_srv log_level log_file_path log_file_max_size log_file_max_age
log_file_max_count policy policy.type policy.k8s_api_root policy.k8s_auth_token policy.k8s_client_certificate
policy.k8s_client_key policy.k8s_certificate_authority kubernetes kubernetes.k8s_api_root kubernetes.kubeconfig
kubernetes.node_name feature_control feature_control.ip_addrs_no_ipam feature_control.floating_ips etcd_scheme
etcd_key_file etcd_cert_file etcd_ca_cert_file container_settings container_settings.allow_ip_forwarding
include_default_routes dataplane_options windows_pod_deletion_timestamp_timeout windows_use_single_network
windows_disable_default_deny_all_policy windows_loopback_DSR runtimeConfig readiness_gates
policy_setup_timeout_seconds endpoint_status_dir etcd_authority hostname require_mtu_file calico_api_group
"""

ANNOTATIONS = """
cni.projectcalico.org/ipv4pools cni.projectcalico.org/ipv6pools cni.projectcalico.org/ipFamilies
cni.projectcalico.org/ipAddrs cni.projectcalico.org/ipAddrsNoIpam cni.projectcalico.org/floatingIPs
cni.projectcalico.org/hwAddr cni.projectcalico.org/allowedSourcePrefixes cni.projectcalico.org/podIP
cni.projectcalico.org/podIPs cni.projectcalico.org/containerID vpc.amazonaws.com/pod-ips
kubernetes.io/ingress-bandwidth kubernetes.io/egress-bandwidth
qos.projectcalico.org/ingressBandwidth qos.projectcalico.org/egressBandwidth qos.projectcalico.org/ingressBurst
qos.projectcalico.org/egressBurst qos.projectcalico.org/ingressPeakrate qos.projectcalico.org/egressPeakrate
qos.projectcalico.org/ingressMinburst qos.projectcalico.org/egressMinburst qos.projectcalico.org/ingressPacketRate
qos.projectcalico.org/egressPacketRate qos.projectcalico.org/ingressPacketBurst qos.projectcalico.org/egressPacketBurst
qos.projectcalico.org/ingressMaxConnections qos.projectcalico.org/egressMaxConnections qos.projectcalico.org/dscp
projectcalico.org/IPv4Address projectcalico.org/IPv6Address projectcalico.org/IPv4IPIPTunnelAddr
projectcalico.org/IPv4VXLANTunnelAddr projectcalico.org/IPv6VXLANTunnelAddr projectcalico.org/VXLANTunnelMACAddr
projectcalico.org/VXLANTunnelMACAddrV6 projectcalico.org/ASNumber projectcalico.org/RouteReflectorClusterID
projectcalico.org/Interfaces projectcalico.org/labels projectcalico.org/annotations
projectcalico.org/IPv4WireguardInterfaceAddr projectcalico.org/IPv6WireguardInterfaceAddr
projectcalico.org/WireguardPublicKey projectcalico.org/WireguardPublicKeyV6 projectcalico.org/metadata
projectcalico.org/kube-labels projectcalico.org/ipv4pools projectcalico.org/ipv6pools
projectcalico.org/loadBalancerIPs projectcalico.org/natExcludeService projectcalico.org/udpConntrackCleanup
lb.projectcalico.org/external-traffic-strategy
"""

FILES = """
/var/lib/calico/nodename /var/lib/calico/shutdownTS /var/lib/calico/mtu /var/run/calico/ipam.lock
/var/run/calico/cni/ipam_upgraded /var/run/calico/endpoint-status /var/run/calico/bird.ctl /var/run/calico/bird6.ctl
/var/run/calico/cgroup /etc/calico/felix.cfg /etc/calico/typha.cfg /etc/calico/calicoctl.cfg $HOME/.kube/config
/etc/calico/confd/templates /etc/calico/confd/conf.d /etc/calico/confd/config /etc/service/enabled
/etc/service/available /etc/rc.local /status/status.json /etc/cni/net.d/10-calico.conflist
/etc/cni/net.d/calico-kubeconfig /etc/cni/net.d/calico-tls /host/opt/cni/bin /host/secondary-bin-dir
/host/etc/cni/net.d /calico-secrets /var/log/calico /var/log/calico/cni/cni.log /run/xtables.lock /lib/modules
/sys/fs/bpf /nodeproc /var/run/nodeagent /var/lib/cni/networks
/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeagent~uds
"""

COMMANDS = [
    "get", "create", "apply", "replace", "delete", "patch", "label", "validate", "version", "convert",
    "ipam show", "ipam check", "ipam release", "ipam configure", "ipam split",
    "datastore migrate export", "datastore migrate import", "datastore migrate lock", "datastore migrate unlock",
    "datastore migrate-policy-names",
    "node status", "node diags", "node checksystem", "node run", "cluster diags",
]  # fmt: skip
