"""PURE: the messages between the plugin executables and the resident server.

Rule: one framed request, one framed answer. A frame is b"ccn" + version (1 byte) + body length (4 bytes, big-endian) +
body; a body is fields, each 4 bytes of length + content. Descriptors are sent with the request's first byte
(SCM_RIGHTS), in the order in which its last field names them. No imports: each would slow down the shim.
"""

from __future__ import annotations

VERSION = 1
# the versions that a server serves; it refuses others with an answer that has its own version
ACCEPTED = (VERSION - 1, VERSION)
MAGIC = b"ccn"
HEADER_BYTES = 8
BODY_MAX = 8 * 1024 * 1024
NETNS, ROOT, MOUNTS = b"netns", b"root", b"mounts"
CONNECT_S = 2.0
# The call's own deadline (60 s) and three undo steps (5 s each): a server that takes longer is stuck.
PATIENCE_S = 75.0
PATIENCE_MIN_S = 0.1
PATIENCE_VARIABLE = "CALICO_CNI_PATIENCE_S"  # an environment variable that changes it
STATUS_MAX = 255


class Malformed(ValueError):
    """Not one of our frames; the text says why."""


def frame(fields: list[bytes], version: int = VERSION) -> bytes:
    """The bytes of a frame."""
    body = b"".join([len(field).to_bytes(4, "big") + field for field in fields])
    return MAGIC + bytes((version,)) + len(body).to_bytes(4, "big") + body


def parse_header(header: bytes) -> tuple[int, int]:
    """(version, body length). Raises Malformed."""
    if len(header) != HEADER_BYTES or header[:3] != MAGIC:
        raise Malformed("not a frame of the CNI server's protocol")
    length = int.from_bytes(header[4:], "big")
    if length > BODY_MAX:
        raise Malformed(f"a body of {length} bytes is over the limit of {BODY_MAX}")
    return header[3], length


def parse_fields(body: bytes) -> list[bytes]:
    """The fields of a body. Raises Malformed."""
    fields, at = [], 0
    while at < len(body):
        length = int.from_bytes(body[at : at + 4], "big")
        at += 4
        if at + length > len(body):
            raise Malformed("a field reaches past the end of the body")
        fields.append(body[at : at + length])
        at += length
    return fields


def request_fields(
    executable: str, environ: list[tuple[str, str]], stdin: bytes, descriptors: list[bytes]
) -> list[bytes]:
    """The fields of a request."""
    block = b"\0".join([f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in environ])
    return [executable.encode(), block, stdin, b",".join(descriptors)]


def parse_request(fields: list[bytes]) -> tuple[str, dict[str, str], bytes, list[bytes]]:
    """(executable, environment, stdin, names of the descriptors). Raises Malformed."""
    if len(fields) < 4:
        raise Malformed(f"a request has 4 fields, got {len(fields)}")
    environ = {}
    for pair in fields[1].split(b"\0"):
        name, equals, value = pair.decode("utf-8", "surrogateescape").partition("=")
        if equals:
            environ[name] = value
    names = [name for name in fields[3].split(b",") if name]
    return fields[0].decode("ascii", "replace"), environ, fields[2], names


def answer_fields(exit_code: int, stdout: bytes) -> list[bytes]:
    return [str(exit_code).encode(), stdout]


def parse_answer(fields: list[bytes]) -> tuple[int, bytes]:
    """(exit status, stdout). Raises Malformed."""
    if len(fields) < 2 or len(fields[0]) > 3 or not fields[0].isdigit() or int(fields[0]) > STATUS_MAX:
        raise Malformed("an answer has an exit status and an output")
    return int(fields[0]), fields[1]
