"""PURE: upstream's parameters that this agent does not use.

Rule: one that is not here is unknown, and probably a typing error.
"""

from __future__ import annotations

# Prefixes of the names of upstream's other parameters: policy, eBPF, WireGuard, OpenStack, ...
_ELSEWHERE_NAMES = """
awssrcdstcheck bpf cgroupv2path clusterguid clustertype calicoversion dataplane datastoretype debug
endpointreporting etcd featuredetect featuregates felixhostname floatingips flowlogscollectordebugtrace
flowlogspolicyevaluationmode genericxdp
gogcthreshold gomaxprocs gomemorylimit healthtimeout ignorelooserpf ipsets iptablesfilter
iptableslockfile iptableslockprobe iptablesmangle iptablesmark iptablespostwrite ipv4elevated ipv4normal
ipv6elevated ipv6normal ipv4vxlantunnel ipv6vxlantunnel ipiniptunneladdr istio kubenodeport livemigration
logdebug logfilepath logseverityfile logseveritysys maxipsetsize metadataaddr metadataport mtuifacepattern
netlinktimeout nftablesfilterallow nftablesmangle openstack policysync prometheusgo prometheusprocess
prometheuswireguard prometheusmetricsca prometheusmetricscert prometheusmetricskey prometheusmetricsclient
prometheusreporter requiremtufile routesource routetablerange sidecar typhareadtimeout
typhawritetimeout usageexport usagereporting
useinternaldataplane usenodelocal variant vxlantunnelmac windows wireguard xdp
"""
ELSEWHERE = tuple(_ELSEWHERE_NAMES.split())

NOT_ENFORCED = {
    "policysyncpathprefix": "there is no policy sync (Istio, Dikastes): rules about HTTP are NOT ENFORCED",
    "useinternaldataplanedriver": "there is no external data plane: this agent programs the kernel",
    "dataplanedriver": "there is no external data plane: this agent programs the kernel",
}
