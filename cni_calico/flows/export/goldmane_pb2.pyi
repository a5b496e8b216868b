# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndpointType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EndpointTypeUnspecified: _ClassVar[EndpointType]
    WorkloadEndpoint: _ClassVar[EndpointType]
    HostEndpoint: _ClassVar[EndpointType]
    NetworkSet: _ClassVar[EndpointType]
    Network: _ClassVar[EndpointType]

class Reporter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ReporterUnspecified: _ClassVar[Reporter]
    Src: _ClassVar[Reporter]
    Dst: _ClassVar[Reporter]

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ActionUnspecified: _ClassVar[Action]
    Allow: _ClassVar[Action]
    Deny: _ClassVar[Action]
    Pass: _ClassVar[Action]

class PolicyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KindUnspecified: _ClassVar[PolicyKind]
    CalicoNetworkPolicy: _ClassVar[PolicyKind]
    GlobalNetworkPolicy: _ClassVar[PolicyKind]
    StagedNetworkPolicy: _ClassVar[PolicyKind]
    StagedGlobalNetworkPolicy: _ClassVar[PolicyKind]
    StagedKubernetesNetworkPolicy: _ClassVar[PolicyKind]
    NetworkPolicy: _ClassVar[PolicyKind]
    Profile: _ClassVar[PolicyKind]
    EndOfTier: _ClassVar[PolicyKind]
    ClusterNetworkPolicy: _ClassVar[PolicyKind]
EndpointTypeUnspecified: EndpointType
WorkloadEndpoint: EndpointType
HostEndpoint: EndpointType
NetworkSet: EndpointType
Network: EndpointType
ReporterUnspecified: Reporter
Src: Reporter
Dst: Reporter
ActionUnspecified: Action
Allow: Action
Deny: Action
Pass: Action
KindUnspecified: PolicyKind
CalicoNetworkPolicy: PolicyKind
GlobalNetworkPolicy: PolicyKind
StagedNetworkPolicy: PolicyKind
StagedGlobalNetworkPolicy: PolicyKind
StagedKubernetesNetworkPolicy: PolicyKind
NetworkPolicy: PolicyKind
Profile: PolicyKind
EndOfTier: PolicyKind
ClusterNetworkPolicy: PolicyKind

class FlowReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlowUpdate(_message.Message):
    __slots__ = ("flow",)
    FLOW_FIELD_NUMBER: _ClassVar[int]
    flow: Flow
    def __init__(self, flow: _Optional[_Union[Flow, _Mapping]] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("Key", "start_time", "end_time", "source_labels", "dest_labels", "packets_in", "packets_out", "bytes_in", "bytes_out", "num_connections_started", "num_connections_completed", "num_connections_live")
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LABELS_FIELD_NUMBER: _ClassVar[int]
    DEST_LABELS_FIELD_NUMBER: _ClassVar[int]
    PACKETS_IN_FIELD_NUMBER: _ClassVar[int]
    PACKETS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_CONNECTIONS_STARTED_FIELD_NUMBER: _ClassVar[int]
    NUM_CONNECTIONS_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    NUM_CONNECTIONS_LIVE_FIELD_NUMBER: _ClassVar[int]
    Key: FlowKey
    start_time: int
    end_time: int
    source_labels: _containers.RepeatedScalarFieldContainer[str]
    dest_labels: _containers.RepeatedScalarFieldContainer[str]
    packets_in: int
    packets_out: int
    bytes_in: int
    bytes_out: int
    num_connections_started: int
    num_connections_completed: int
    num_connections_live: int
    def __init__(self, Key: _Optional[_Union[FlowKey, _Mapping]] = ..., start_time: _Optional[int] = ..., end_time: _Optional[int] = ..., source_labels: _Optional[_Iterable[str]] = ..., dest_labels: _Optional[_Iterable[str]] = ..., packets_in: _Optional[int] = ..., packets_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., num_connections_started: _Optional[int] = ..., num_connections_completed: _Optional[int] = ..., num_connections_live: _Optional[int] = ...) -> None: ...

class FlowKey(_message.Message):
    __slots__ = ("source_name", "source_namespace", "source_type", "dest_name", "dest_namespace", "dest_type", "dest_port", "dest_service_name", "dest_service_namespace", "dest_service_port_name", "dest_service_port", "proto", "reporter", "action", "policies")
    SOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEST_NAME_FIELD_NUMBER: _ClassVar[int]
    DEST_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEST_PORT_FIELD_NUMBER: _ClassVar[int]
    DEST_SERVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEST_SERVICE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DEST_SERVICE_PORT_NAME_FIELD_NUMBER: _ClassVar[int]
    DEST_SERVICE_PORT_FIELD_NUMBER: _ClassVar[int]
    PROTO_FIELD_NUMBER: _ClassVar[int]
    REPORTER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    source_name: str
    source_namespace: str
    source_type: EndpointType
    dest_name: str
    dest_namespace: str
    dest_type: EndpointType
    dest_port: int
    dest_service_name: str
    dest_service_namespace: str
    dest_service_port_name: str
    dest_service_port: int
    proto: str
    reporter: Reporter
    action: Action
    policies: PolicyTrace
    def __init__(self, source_name: _Optional[str] = ..., source_namespace: _Optional[str] = ..., source_type: _Optional[_Union[EndpointType, str]] = ..., dest_name: _Optional[str] = ..., dest_namespace: _Optional[str] = ..., dest_type: _Optional[_Union[EndpointType, str]] = ..., dest_port: _Optional[int] = ..., dest_service_name: _Optional[str] = ..., dest_service_namespace: _Optional[str] = ..., dest_service_port_name: _Optional[str] = ..., dest_service_port: _Optional[int] = ..., proto: _Optional[str] = ..., reporter: _Optional[_Union[Reporter, str]] = ..., action: _Optional[_Union[Action, str]] = ..., policies: _Optional[_Union[PolicyTrace, _Mapping]] = ...) -> None: ...

class PolicyTrace(_message.Message):
    __slots__ = ("enforced_policies", "pending_policies")
    ENFORCED_POLICIES_FIELD_NUMBER: _ClassVar[int]
    PENDING_POLICIES_FIELD_NUMBER: _ClassVar[int]
    enforced_policies: _containers.RepeatedCompositeFieldContainer[PolicyHit]
    pending_policies: _containers.RepeatedCompositeFieldContainer[PolicyHit]
    def __init__(self, enforced_policies: _Optional[_Iterable[_Union[PolicyHit, _Mapping]]] = ..., pending_policies: _Optional[_Iterable[_Union[PolicyHit, _Mapping]]] = ...) -> None: ...

class PolicyHit(_message.Message):
    __slots__ = ("kind", "namespace", "name", "tier", "action", "policy_index", "rule_index", "trigger")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    POLICY_INDEX_FIELD_NUMBER: _ClassVar[int]
    RULE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    kind: PolicyKind
    namespace: str
    name: str
    tier: str
    action: Action
    policy_index: int
    rule_index: int
    trigger: PolicyHit
    def __init__(self, kind: _Optional[_Union[PolicyKind, str]] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., tier: _Optional[str] = ..., action: _Optional[_Union[Action, str]] = ..., policy_index: _Optional[int] = ..., rule_index: _Optional[int] = ..., trigger: _Optional[_Union[PolicyHit, _Mapping]] = ...) -> None: ...
