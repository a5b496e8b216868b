"""PURE: those of Felix's parameters that say what the agent tells (status, pages, metrics, log), and what it follows.

Rule: as felix.py, whose table begins with these.
"""

from __future__ import annotations

import re

from cni_calico.daemon.settings_table import FLAG, PORT, SECONDS, TEXT, setting, settings_table
from cni_calico.nodeagent.context.kinds import CLIENT_AUTH, EXPRESSION, LOG_FILE, RELAY, SEVERITIES


@settings_table
class ServingSettings:
    """What the agent tells, and whom it follows."""

    reporting_interval_s: float = setting(
        "ReportingIntervalSecs",
        SECONDS,
        30.0,
        "How often this host's status is written to etcd; 0: never (what start-up stores for the cluster).",
        section="Health, metrics, logs",
    )
    reporting_ttl_s: float = setting(
        "ReportingTTLSecs", SECONDS, 90.0, "How long that status stays in etcd unless it is renewed."
    )
    health_enabled: bool = setting("HealthEnabled", FLAG, False, "Serve /liveness and /readiness.")
    health_host: str = setting("HealthHost", TEXT, "localhost", "Address of the health pages.")
    health_port: int = setting("HealthPort", PORT, 9099, "Port of the health pages.")
    metrics_enabled: bool = setting("PrometheusMetricsEnabled", FLAG, False, "Serve Prometheus metrics.")
    metrics_host: str = setting("PrometheusMetricsHost", TEXT, "", "Address of the metrics.")
    metrics_port: int = setting("PrometheusMetricsPort", PORT, 9091, "Port of the metrics.")
    metrics_go: bool = setting(
        "PrometheusGoMetricsEnabled", FLAG, True, "Serve the metrics of the language, which is Python: python_..."
    )
    metrics_process: bool = setting("PrometheusProcessMetricsEnabled", FLAG, True, "Serve process_...")
    metrics_wireguard: bool = setting(
        "PrometheusWireGuardMetricsEnabled", FLAG, True, "Serve wireguard_..., where encryption is enabled."
    )
    metrics_certificate: str = setting(
        "PrometheusMetricsCertFile", TEXT, "", "Certificate (PEM): metrics are served over TLS only."
    )
    metrics_key: str = setting("PrometheusMetricsKeyFile", TEXT, "", "The certificate's key.")
    metrics_ca: str = setting(
        "PrometheusMetricsCAFile", TEXT, "", "Authorities of clients' certificates; empty: the system's."
    )
    metrics_client_auth: str = setting(
        "PrometheusMetricsClientAuth",
        CLIENT_AUTH,
        "RequireAndVerifyClientCert",
        "Whether clients need a certificate. RequireAnyClientCert verifies it too, RequestClientCert asks for none.",
    )
    log_severity: str = setting("LogSeverityScreen", SEVERITIES, "info", "Log level on stderr.")
    log_file_severity: str | None = setting(
        "LogSeverityFile", SEVERITIES, None, "Log level of the file; unset: as on stderr."
    )
    log_file: str | None = setting(
        "LogFilePath", LOG_FILE, None, "The log's file, none: there is none; unset: calico-node.log in CALICO_LOG_DIR."
    )
    log_debug_files: re.Pattern[str] | None = setting(
        "LogDebugFilenameRegex", EXPRESSION, None, "Debug records only of source files with such names."
    )
    relay_address: str = setting(
        "TyphaAddr",
        RELAY,
        "",
        "host:port of the relay (calico-typha) through which the cluster is followed. Relay parameters are read from "
        "the environment only.",
        section="Relay",
    )
    relay_service: str = setting("TyphaK8sServiceName", TEXT, "", "The relays' Service; none or empty: there is none.")
    relay_namespace: str = setting("TyphaK8sNamespace", TEXT, "kube-system", "The Service's namespace.")
    relay_ca: str = setting("TyphaCAFile", TEXT, "", "The certificate authority of the relays; required.")
    relay_certificate: str = setting("TyphaCertFile", TEXT, "", "The agent's certificate; empty: a token is sent.")
    relay_key: str = setting("TyphaKeyFile", TEXT, "", "The certificate's key.")
    relay_token_file: str = setting(
        "TyphaTokenFile", TEXT, "", "Ours: a file with a token that only relays take; empty: they get the API server's."
    )
    relay_common_name: str = setting(
        "TyphaCN", TEXT, "", "Name in relays' certificates; empty: their host's or Service's."
    )
    relay_uri: str = setting("TyphaURISAN", TEXT, "", "A URI that must be among the names of the relays' certificates.")
