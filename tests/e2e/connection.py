"""An open connection to a collector: a stranger's Flight SQL client, for what is asked again and again.

A test that waits for a row asks twenty times a second. Each time a command of its own would take the processor that the
training needs; that the command answers the same is what other tests are for.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
from pyarrow import flight

#: Types whose values Python and the command's JSON write alike.
_ALIKE = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_null)


def _field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message: bytes or a message."""
    length, size = len(value), b""
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + value


def _statement(sql: str) -> flight.FlightDescriptor:
    """Flight SQL's CommandStatementQuery, in an Any."""
    name = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return flight.FlightDescriptor.for_command(_field(1, name) + _field(2, _field(1, sql.encode())))


class Connections:
    """One for each socket that was asked."""

    def __init__(self) -> None:
        self._open: dict[str, flight.FlightClient] = {}

    def query(self, socket: pathlib.Path, sql: str) -> list[dict[str, Any]] | None:
        """Rows as the command's JSON has them; None where that is for the command to say: errors, times, no collector."""
        address = str(socket)
        if not socket.exists():
            self.close(address)
            return None
        client = self._open.get(address) or self._open.setdefault(address, flight.connect(f"grpc+unix://{address}"))
        options = flight.FlightCallOptions(timeout=60)
        try:
            (endpoint,) = client.get_flight_info(_statement(sql), options).endpoints
            table = client.do_get(endpoint.ticket, options).read_all()
        except (flight.FlightError, pa.ArrowException, OSError):
            self.close(address)
            return None
        if not all(any(alike(kind) for alike in _ALIKE) for kind in table.schema.types):
            return None
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def close(self, address: str | None = None) -> None:
        """Closes the connection to one socket, or all connections."""
        for each in [address] if address else list(self._open):
            if client := self._open.pop(each, None):
                client.close()
