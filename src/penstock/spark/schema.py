"""Conversion between Spark's and Arrow's schemas."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import FlowError


def arrow_schema(schema: StructType, spark: SparkSession | None) -> pa.Schema:
    """The Arrow schema of batches that Spark sends to Python for this schema; without a session, with times
    in UTC."""
    zone = "UTC" if spark is None else spark.conf.get("spark.sql.session.timeZone")
    try:
        converted: pa.Schema = to_arrow_schema(schema, timezone=zone)
    except Exception as unfit:
        raise FlowError(
            f"a column type of the source has no Arrow type: {unfit}",
            hint="drop or cast that column before ps.flow(...)",
        ) from unfit
    return converted


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of batches with this Arrow schema."""
    return from_arrow_schema(schema)


def declared(schema: pa.Schema | StructType | str, spark: SparkSession) -> pa.Schema:
    """The Arrow schema of a user's schema, which may be Arrow's, Spark's or DDL text."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            parsed = StructType.fromDDL(schema)
        except Exception as unfit:
            raise FlowError(
                f"{schema!r} is not a schema", hint='write for example "word string, n long"'
            ) from unfit
        schema = parsed
    if not isinstance(schema, StructType):
        raise FlowError(
            f"{schema!r:.100} is not a schema", hint='write for example "word string, n long"'
        )
    return arrow_schema(schema, spark)
