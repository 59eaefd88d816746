"""Answers as Arrow, from the command's pipe to pyarrow, pandas and Polars. None of them is imported before it is asked for."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainprobe.command import Command
from trainprobe.errors import Missing
from trainprobe.rows import Column

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: pandas' types for those of Arrow that it has no NULL for otherwise.
_NULLABLE = {
    "bool": "boolean",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
}


def needed(package: str, what: str, *more: str) -> Any:
    """The module `package`, which `what` needs. Raises Missing, with how to install it and `more`."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name not in (package, package.split(".")[0]):
            raise
        names = " ".join(dict.fromkeys([package.split(".")[0], *more]))
        raise Missing(
            f"{what} needs {package.split('.')[0]}, which is not installed", f"pip install {names}"
        ) from error


def reader(command: Command, what: str) -> pyarrow.RecordBatchReader:
    """A reader of an answer in the Arrow format, batch by batch: memory stays the same however many rows there are. An
    answer that breaks off raises when reading reaches that point."""
    try:
        library = needed("pyarrow", what)
        ipc = needed("pyarrow.ipc", what)
    except BaseException:
        command.end()
        raise
    try:
        stream = ipc.open_stream(command.stdout)
    except (library.ArrowInvalid, OSError):
        # Nothing came: the command says why.
        command.finish()
        raise
    except BaseException:
        command.end()
        raise

    def batches() -> Iterator[pyarrow.RecordBatch]:
        try:
            try:
                yield from stream
            except (library.ArrowException, OSError):
                # It breaks off in the middle of a batch when the command dies: how that ended says more.
                command.finish()
                raise
            command.finish()
        finally:
            command.end()

    made: pyarrow.RecordBatchReader = library.RecordBatchReader.from_batches(stream.schema, batches())
    return made


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """A DataFrame. Integers and booleans with NULL are pandas' `Int64` and `boolean`, so that no integer becomes a
    float; times are in UTC."""
    library = needed("pandas", "df()", "pyarrow")
    frame: pandas.DataFrame = table.to_pandas()
    for field, column in zip(table.schema, table.columns):
        kind = str(field.type)
        if column.null_count and kind in _NULLABLE:
            dtype = library.api.types.pandas_dtype(_NULLABLE[kind])
            frame[field.name] = column.to_pandas(types_mapper={field.type: dtype}.get)
    return frame


def to_plain(table: pyarrow.Table) -> tuple[list[Column], list[tuple[Any, ...]]]:
    """Its columns and rows as of :class:`~trainprobe.rows.Rows`; what is no number, time, text or boolean is text."""
    types = needed("pyarrow", "rows").types
    columns, values = [], []
    for field, column in zip(table.schema, table.columns):
        if types.is_timestamp(field.type):
            columns.append(Column({"name": field.name, "type": "timestamp", "unit": field.type.unit}))
            convert = columns[-1].convert or (lambda value: value)
            whole = column.cast("int64").to_pylist()
            values.append([None if each is None else convert(each) for each in whole])
            continue
        known = {"int": types.is_integer, "float": types.is_floating, "bool": types.is_boolean, "text": types.is_string}
        kind = next((kind for kind, is_kind in known.items() if is_kind(field.type)), None)
        columns.append(Column({"name": field.name, "type": kind or "text"}))
        values.append(column.to_pylist() if kind else [str(each) if each.is_valid else None for each in column])
    return columns, list(zip(*values)) if values else []


def to_polars(command: Command) -> polars.DataFrame:
    """A DataFrame of Polars, which reads the stream by itself."""
    try:
        library = needed("polars", "pl()")
    except BaseException:
        command.end()
        raise
    frame: polars.DataFrame = library.read_ipc_stream(io.BytesIO(command.read()))
    return frame
