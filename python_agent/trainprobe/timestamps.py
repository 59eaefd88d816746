"""Points in time to the nanosecond, without numpy or pandas."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Timestamp(datetime):
    """A `datetime` in UTC that also knows its nanoseconds.

    It compares and prints like the datetime, to the microsecond; `nanoseconds` is exact.

    :ivar nanoseconds: nanoseconds since 1970-01-01 00:00 UTC.

    >>> Timestamp.of(1_700_000_000_123_456_789).isoformat()
    '2023-11-14T22:13:20.123456789+00:00'
    """

    nanoseconds: int

    @classmethod
    def of(cls, nanoseconds: int) -> Timestamp:
        """The point in time so many nanoseconds after 1970.

        Raises OverflowError for one that is in no year from 1 to 9999.
        """
        at = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
        made = cls(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, timezone.utc)
        made.nanoseconds = nanoseconds
        return made

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        """RFC 3339; with nine digits after the point where there are nanoseconds."""
        rest = getattr(self, "nanoseconds", 0) % 1000
        if timespec != "auto" or not rest:
            return super().isoformat(sep, timespec)
        at = super().isoformat(sep, "microseconds")
        return f"{at[:26]}{rest:03}{at[26:]}"

    def __str__(self) -> str:
        return self.isoformat(" ")

    def __reduce__(self) -> tuple[object, ...]:
        return (Timestamp.of, (nanoseconds_of(self),))


def nanoseconds_of(time: datetime) -> int:
    """Nanoseconds since 1970 of a datetime that has a time zone; exact for :class:`Timestamp` and pandas' Timestamp."""
    known = getattr(time, "nanoseconds", None)
    if isinstance(known, int):
        return known
    since = time - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    # A Timestamp of pandas has the rest in another attribute.
    return microseconds * 1000 + int(getattr(time, "nanosecond", 0))
