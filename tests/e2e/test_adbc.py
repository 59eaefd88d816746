"""Other people's clients of Flight SQL ask a collector: ADBC with values for parameters, and pyarrow."""

from __future__ import annotations

import datetime
import re

import adbc_driver_flightsql.dbapi as adbc
import pyarrow.flight
import pytest
import trainprobe as probe
from reader import environment_of

from conftest import Home, wait_for


def test_adbc_binds_parameters(home: Home) -> None:
    _, address = home.serve("adbc")
    address = f"grpc+unix://{address.removeprefix('unix:')}"
    with adbc.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT value FROM generate_series(1, 10) WHERE value > ? AND value < ? ORDER BY 1", (3, 6))
        assert cursor.fetchall() == [(4,), (5,)]
        # Again, with other values: the statement is prepared anew by the driver.
        cursor.execute("SELECT $1 AS text, $2 AS half, $3 AS yes, $4 AS none", ("'; DROP --", 0.5, True, None))
        assert cursor.fetchall() == [("'; DROP --", 0.5, True, None)]
        at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
        cursor.execute("SELECT $1 AS at, arrow_typeof($1) AS type", (at,))
        assert cursor.fetchall() == [(at, 'Timestamp(µs, "UTC")')]
        cursor.adbc_prepare("SELECT run FROM probe.store WHERE table_name = ? LIMIT 1")
        cursor.execute("SELECT run FROM probe.store WHERE table_name = ? LIMIT 1", ("python.steps",))
        assert cursor.fetchone() == ("adbc@1",)
        with pytest.raises(adbc.Error, match="2 values are given"):
            cursor.execute("SELECT ?", (1, 2))
        with pytest.raises(adbc.Error, match="queries only read"):
            cursor.executemany("SELECT ?", [(1,), (2,)])


def test_grpc_s_c_core_asks_on_a_socket_as_it_comes(home: Home) -> None:
    """pyarrow (and Python's grpcio, and C++) sends the path of the socket as the authority of each call."""
    _, address = home.serve("flight")
    with pyarrow.flight.connect(f"grpc+unix://{address.removeprefix('unix:')}") as client:
        for n in range(3):
            descriptor = pyarrow.flight.FlightDescriptor.for_command(statement_query(f"SELECT {n} AS n"))
            info = client.get_flight_info(descriptor)
            assert client.do_get(info.endpoints[0].ticket).read_all().to_pylist() == [{"n": n}]


def statement_query(sql: str) -> bytes:
    """Flight SQL's CommandStatementQuery in an Any, as protobuf."""

    def field(number: int, value: bytes) -> bytes:
        assert len(value) < 128, "a length of one byte"
        return bytes([number << 3 | 2, len(value)]) + value

    kind = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return field(1, kind) + field(2, field(1, sql.encode()))


def test_a_user_and_a_password_are_a_token(home: Home) -> None:
    made = home.probe("token", "make", "laptop", "--scope", "query", "-o", "-")
    token = made.stdout.split()[0]
    home.spawn("probe", "serve", "--name", "password", "--listen", "127.0.0.1:0")
    address = str(wait_for("its port", lambda: port_of(home)))
    with adbc.connect(address, {"username": "anybody", "password": token}, autocommit=True) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT $1 AS one", (1,))
            assert cursor.fetchall() == [(1,)]
    # The reader shows it as the command does, from a file.
    file = home.directory / "laptop.token"
    file.touch(0o600)
    file.write_text(token)
    with environment_of(home):
        run = probe.connect(address.removeprefix("grpc://"), token_file=file)
        assert run.sql("SELECT $x + 1 AS two", x=1).fetchall() == [(2,)]
        with pytest.raises(probe.Denied, match="asks for a token"):
            probe.connect(address.removeprefix("grpc://"))
    with pytest.raises(adbc.Error, match="the token is none of this collector's"):
        adbc.connect(address, {"username": "anybody", "password": token[:-1]}, autocommit=True).cursor().execute(
            "SELECT 1"
        )


def port_of(home: Home) -> str | None:
    said = home.children[-1].err_path.read_text() + home.children[-1].out_path.read_text()
    found = re.search(r"127\.0\.0\.1:(\d+)", said)
    return f"grpc://{found[0]}" if found and found[1] != "0" else None
