"""Schemas of the lake's tables, worked out from the models of the protocol: they can't drift apart.

A field of a record is a column of the same name: texts and enumerations as string, whole numbers as long, others as
double, tuples as arrays, parts as structs, the record of a decision as its JSON. Every column may be null, because a
file written before a field existed is read with it. Beside the record's own fields a table has:

    time            timestamp   `time_us` as a time
    stream_broker   string      the RabbitMQ that the record was read from, as the source calls it
    stream          string
    stream_offset   long        with the two above the identity of the record
    read_at         timestamp   when its batch was begun
    date, batch                 directories: the day of `time`, UTC, and the batch that wrote it

The kind is a directory, too, and no column.
"""

from __future__ import annotations

from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate_protocol.decisions import Decision
from tidegate_protocol.telemetry import KINDS, RECORD_CLASSES, Record

from .errors import InvalidOption

WHOLE_MAX: Final = 1 << 53
"""The largest whole number that the lake takes: beyond it JSON numbers are not exact everywhere, and nothing that is
counted or measured here gets there (in microseconds it is 285 years)."""
_SCALARS: Final[dict[type, DataType]] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
}

ORIGIN: Final = (
    StructField("time", TimestampType()),
    StructField("stream_broker", StringType()),
    StructField("stream", StringType()),
    StructField("stream_offset", LongType()),
    StructField("read_at", TimestampType()),
)
PARTITIONS: Final = (StructField("date", DateType()), StructField("batch", LongType()))

QUARANTINE: Final = StructType(
    [
        StructField("stream_broker", StringType()),
        StructField("stream", StringType()),
        StructField("stream_offset", LongType()),
        StructField("routing_key", StringType()),
        StructField("read_at", TimestampType()),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        StructField("body_bytes", LongType()),
        StructField("body", BinaryType()),
    ]
)
"""What is no record: the reason from a fixed set (`judging.REASONS`), the details for people, the bytes for later."""

MODELS: Final[dict[str, type[Record]]] = dict(zip(KINDS, RECORD_CLASSES, strict=True))


def record_schema(kind: str) -> StructType:
    """The fields of a record of this kind, as Spark reads them from its JSON."""
    model = MODELS.get(kind)
    if model is None:
        raise InvalidOption("kind", f"there is no kind {kind!r}", f"the kinds are {', '.join(KINDS)}")
    fields = [field for field in _struct(model).fields if field.name != "kind"]
    taken = {field.name for field in fields} & {field.name for field in (*ORIGIN, *PARTITIONS)}
    assert not taken, f"a field of {kind} has the name of a column of the lake: {taken}"
    return StructType(fields)


def table_schema(kind: str) -> StructType:
    """The columns of the table of this kind, directories and all."""
    return StructType([*record_schema(kind).fields, *ORIGIN, *PARTITIONS])


def quarantine_schema() -> StructType:
    """The columns of the quarantine; its date is that of reading."""
    return StructType([*QUARANTINE.fields, *PARTITIONS])


def _struct(model: type[BaseModel]) -> StructType:
    return StructType([StructField(name, _type(info.annotation)) for name, info in model.model_fields.items()])


def _type(annotation: Any) -> DataType:
    """The column type of a field's annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        (only,) = (each for each in arguments if each is not NoneType)
        return _type(only)
    if origin is Literal:
        return _SCALARS[type(arguments[0])]
    if origin is tuple:
        assert arguments[1:] == (...,), f"only tuples of any length are columns: {annotation}"
        return ArrayType(_type(arguments[0]))
    if origin is dict:
        return MapType(_type(arguments[0]), _type(arguments[1]))
    assert isinstance(annotation, type), f"no column type for {annotation}"
    if issubclass(annotation, BaseModel):
        return _struct(annotation)
    if issubclass(annotation, Enum | Decision):  # a decision is kept as its JSON: each kind has fields of its own
        return StringType()
    return _SCALARS[annotation]
