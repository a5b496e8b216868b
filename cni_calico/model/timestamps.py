"""PURE: points in time in the spelling of Calico's records.

Rule: everywhere else times are numbers (since 1970); only this module converts them to texts.
"""

from __future__ import annotations

from collections.abc import Mapping

_DAYS_1970 = 719468  # days from 0000-03-01 to 1970-01-01


def _civil(now_s: int) -> tuple[str, str]:
    """("YYYY-MM-DD", "HH:MM:SS") in UTC; the calendar counted in 400-year eras that begin in March."""
    days, second = divmod(now_s, 86400)
    era, day_of_era = divmod(days + _DAYS_1970, 146097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    year += era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{day:02}", f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def allocation_time(now_ns: int) -> str:
    """``2026-11-20 12:06:28.943484342 +0000 UTC``, as Go prints a time: without zeros at the end of the fraction."""
    day, time = _civil(now_ns // 1_000_000_000)
    fraction = f"{now_ns % 1_000_000_000:09}".rstrip("0")
    return f"{day} {time}{'.' if fraction else ''}{fraction} +0000 UTC"


def stamped(attributes: Mapping[str, str], now_ns: int) -> dict[str, str]:
    """An allocation's attributes with its time; in upstream those of tunnel addresses (the ones with a
    type) have none.
    """
    return dict(attributes) if "type" in attributes else {**attributes, "timestamp": allocation_time(now_ns)}


def rfc3339(now_s: float) -> str:
    """``2026-11-20T12:06:28Z``: whole seconds, as in metadata and claim times."""
    return "{}T{}Z".format(*_civil(int(now_s)))


def micro_time(now_s: float) -> str:
    """``2026-11-20T12:06:28.943484Z``: RFC 3339 with microseconds, as in Kubernetes' leases."""
    seconds, micro = divmod(round(now_s * 1_000_000), 1_000_000)
    return "{}T{}.{:06}Z".format(*_civil(seconds), micro)


def parse_rfc3339(text: str) -> float | None:
    """Unix seconds; None if it is not an RFC 3339 time (the record's age is then unknown)."""
    from datetime import datetime  # few calls need it

    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None
