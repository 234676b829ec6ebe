"""The lake's tables follow the protocol's models, and don't change unnoticed.

When a record gets a new field on purpose, run this file to write the golden file anew, and look at the difference: a
column may come; one that goes or changes its type can't be read from what lakes hold already.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from tests.unit.protocol.telemetry_samples import SAMPLES
from tidegate_analytics.errors import InvalidOption
from tidegate_analytics.schemas import MODELS, quarantine_schema, record_schema, table_schema
from tidegate_protocol.telemetry import KINDS, encode

GOLDEN = Path(__file__).parents[2] / "golden" / "lake_tables.json"


def tables() -> dict[str, dict[str, str]]:
    schemas = {**{kind: table_schema(kind) for kind in KINDS}, "quarantine": quarantine_schema()}
    return {
        name: {field.name: field.dataType.simpleString() for field in schema.fields} for name, schema in schemas.items()
    }


def golden_text() -> str:
    return json.dumps(tables(), indent=2) + "\n"


def test_the_tables_are_those_that_lakes_hold_already() -> None:
    assert golden_text() == GOLDEN.read_text()


def test_every_kind_has_a_table_with_all_its_fields() -> None:
    assert set(MODELS) == set(KINDS) == {sample.kind for sample in SAMPLES}
    for kind, model in MODELS.items():
        assert record_schema(kind).names == [name for name in model.model_fields if name != "kind"]


def names_in(schema: StructType) -> set[str]:
    """Of all fields, those of parts too."""
    found = set(schema.names)
    for field in schema.fields:
        inner = getattr(field.dataType, "elementType", field.dataType)
        if isinstance(inner, StructType):
            found |= names_in(inner)
    return found


def keys_in(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys_in, value))
    return set(value).union(*map(keys_in, value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
def test_what_is_written_has_a_column(sample: Any) -> None:
    written = json.loads(encode(sample))
    # What a decision consists of is one column, as JSON.
    columns = {name: None if name == "record" else value for name, value in written.items()}
    assert keys_in(columns) - {"kind"} <= names_in(record_schema(sample.kind))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidOption, match="there is no kind 'weather'; the kinds are load, "):
        record_schema("weather")


if __name__ == "__main__":
    GOLDEN.write_text(golden_text())
