"""Certificates of the webhook: made with OpenSSL's own library, the one that Python's ``ssl`` has loaded.

Rule: no arithmetic and no encoding of certificates is done here; each step is one call of libcrypto, whose failure is
an error. A certificate is signed by its own key and is trusted as itself, so that no key exists that could sign
another one.
"""

from __future__ import annotations

import ctypes
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from cni_calico.daemon.server_tls import server_context
from cni_calico.errors import InvalidConfig

CURVE_NAME = ctypes.c_char_p(b"P-256")
DAY_S = 86400
_BACKDATED_S = 3600  # for API servers whose clock is behind
_V3, _UTF8 = 2, 0x1000  # X.509 version 3; MBSTRING_UTF8
_NID_BASIC, _NID_USAGE, _NID_EXTENDED, _NID_NAMES = 87, 83, 126, 85  # obj_mac.h


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM: a certificate (those that signed it may follow) and its private key."""

    certificate: bytes
    key: bytes


def make_certificate(names: Sequence[str], valid_s: int) -> KeyPair:
    """A new key with a certificate for a server of these DNS names; the first is its common name. Raises
    InvalidConfig.
    """
    lib = _library()
    with ExitStack() as stack:
        key = stack.enter_context(_freed(lib.EVP_PKEY_Q_keygen(None, None, b"EC", CURVE_NAME), lib.EVP_PKEY_free))
        certificate = stack.enter_context(_freed(lib.X509_new(), lib.X509_free))
        _done(lib.X509_set_version(certificate, _V3))
        number = int.from_bytes(os.urandom(8), "big") >> 1
        _done(lib.ASN1_INTEGER_set_uint64(lib.X509_get_serialNumber(certificate), number))
        _set_time(lib.X509_getm_notBefore(certificate), -_BACKDATED_S)
        _set_time(lib.X509_getm_notAfter(certificate), valid_s)
        _done(lib.X509_set_pubkey(certificate, key))
        subject = lib.X509_get_subject_name(certificate)
        common = names[0].encode()[:64]
        _done(lib.X509_NAME_add_entry_by_txt(subject, b"CN", _UTF8, common, -1, -1, 0))
        # a client looks for the signer by his name: each certificate has another one
        _done(lib.X509_NAME_add_entry_by_txt(subject, b"serialNumber", _UTF8, b"%x" % number, -1, -1, 0))
        _done(lib.X509_set_issuer_name(certificate, subject))
        _extend(certificate, _NID_BASIC, "critical,CA:FALSE")
        _extend(certificate, _NID_USAGE, "critical,digitalSignature")
        _extend(certificate, _NID_EXTENDED, "serverAuth")
        _extend(certificate, _NID_NAMES, ",".join(f"DNS:{name}" for name in names))
        _done(lib.X509_sign(certificate, key, lib.EVP_sha256()))
        return KeyPair(
            _pem(lambda memory: lib.PEM_write_bio_X509(memory, certificate)),
            _pem(lambda memory: lib.PEM_write_bio_PrivateKey(memory, key, None, None, 0, None, None)),
        )


def read_left_s(certificate: bytes) -> float:
    """For how long the (first) certificate is valid still; negative: it is over. Raises InvalidConfig."""
    lib = _library()
    with _parsed(certificate) as parsed:
        days, seconds = ctypes.c_int(), ctypes.c_int()
        end = lib.X509_get0_notAfter(parsed)
        _done(lib.ASN1_TIME_diff(ctypes.byref(days), ctypes.byref(seconds), None, end))
        return float(days.value * DAY_S + seconds.value)


def names_server(certificate: bytes, name: str) -> bool:
    """Whether it is a certificate of the server of that DNS name. Raises InvalidConfig."""
    with _parsed(certificate) as parsed:
        return bool(_library().X509_check_host(parsed, name.encode(), 0, 0, None) == 1)


def serving_context(pair: KeyPair, client_ca: str = "") -> ssl.SSLContext:
    """A server's context; with the file ``client_ca`` clients that show a certificate need one signed there.

    Raises OSError (ssl.SSLError is one): the two do not belong together, or are none.
    """
    with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
        clients = ssl.CERT_OPTIONAL if client_ca else ssl.CERT_NONE
        return server_context(certificate, key, client_ca, clients)


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """The path of a file that is on no disk."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


# -- libcrypto --------------------------------------------------------------------------------------------------------

# function -> (what it returns, what it takes); "p" a pointer, "i" int, "s" bytes, "n" a 64-bit number, "l" long
_SIGNATURES = {
    "ERR_clear_error": ("", ""),
    "EVP_PKEY_free": ("", "p"),
    "X509_new": ("p", ""),
    "X509_free": ("", "p"),
    "X509_set_version": ("i", "pl"),
    "X509_get_serialNumber": ("p", "p"),
    "ASN1_INTEGER_set_uint64": ("i", "pn"),
    "X509_getm_notBefore": ("p", "p"),
    "X509_getm_notAfter": ("p", "p"),
    "X509_get0_notAfter": ("p", "p"),
    "X509_gmtime_adj": ("p", "pl"),
    "ASN1_TIME_diff": ("i", "pppp"),
    "X509_set_pubkey": ("i", "pp"),
    "X509_get_subject_name": ("p", "p"),
    "X509_set_issuer_name": ("i", "pp"),
    "X509_NAME_add_entry_by_txt": ("i", "psisiii"),
    "X509V3_EXT_conf_nid": ("p", "ppis"),
    "X509_EXTENSION_free": ("", "p"),
    "X509_add_ext": ("i", "ppi"),
    "EVP_sha256": ("p", ""),
    "X509_sign": ("i", "ppp"),
    "X509_check_host": ("i", "psnip"),
    "BIO_s_mem": ("p", ""),
    "BIO_new": ("p", "p"),
    "BIO_new_mem_buf": ("p", "si"),
    "BIO_read": ("i", "ppi"),
    "BIO_free": ("i", "p"),
    "PEM_write_bio_X509": ("i", "pp"),
    "PEM_write_bio_PrivateKey": ("i", "pppsipp"),
    "PEM_read_bio_X509": ("p", "pppp"),
}
_KEYGEN = "EVP_PKEY_Q_keygen"  # takes as many values more as its type of key needs
_TYPES: dict[str, Any] = {
    "": None,
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "l": ctypes.c_long,
    "s": ctypes.c_char_p,
    "n": ctypes.c_uint64,
}


@cache
def _library() -> Any:
    """By its major version, whose binary interface is kept: the same that ``ssl`` works with."""
    major = ssl.OPENSSL_VERSION_INFO[0]
    try:
        loaded = ctypes.CDLL(f"libcrypto.so.{major}")
        functions = {name: loaded[name] for name in (*_SIGNATURES, _KEYGEN)}
    except (OSError, AttributeError) as e:
        raise InvalidConfig(
            f"cannot make a certificate: {e}", details="give one with --tls-cert-file and --tls-private-key-file"
        ) from e
    for name, (returned, taken) in _SIGNATURES.items():
        functions[name].restype, functions[name].argtypes = _TYPES[returned], [_TYPES[each] for each in taken]
    functions[_KEYGEN].restype = ctypes.c_void_p
    functions[_KEYGEN].argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
    return SimpleNamespace(**functions)


def _done(outcome: Any) -> None:
    if not outcome:
        _library().ERR_clear_error()  # ``ssl``, in this thread, would take it for its own
        raise InvalidConfig("cannot make or read a certificate: OpenSSL refuses it")


def _set_time(field: Any, from_now_s: int) -> None:
    _done(_library().X509_gmtime_adj(field, from_now_s))


def _extend(certificate: Any, number: int, text: str) -> None:
    lib = _library()
    with _freed(lib.X509V3_EXT_conf_nid(None, None, number, text.encode()), lib.X509_EXTENSION_free) as extension:
        _done(lib.X509_add_ext(certificate, extension, -1))


@contextmanager
def _freed(pointer: Any, free: Any) -> Iterator[Any]:
    _done(pointer)
    try:
        yield pointer
    finally:
        free(pointer)


@contextmanager
def _parsed(certificate: bytes) -> Iterator[Any]:
    lib = _library()
    with ExitStack() as stack:
        memory = stack.enter_context(_freed(lib.BIO_new_mem_buf(certificate, len(certificate)), lib.BIO_free))
        yield stack.enter_context(_freed(lib.PEM_read_bio_X509(memory, None, None, None), lib.X509_free))


def _pem(write: Any) -> bytes:
    lib = _library()
    with _freed(lib.BIO_new(lib.BIO_s_mem()), lib.BIO_free) as memory:
        _done(write(memory))
        text = ctypes.create_string_buffer(16384)
        length = lib.BIO_read(memory, text, len(text))
        _done(length > 0)
        return text.raw[:length]
