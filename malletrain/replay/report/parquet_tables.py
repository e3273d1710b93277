"""The analyst's tables as Parquet: typed columns that pandas, polars, DuckDB, R and Spark read as they are.

Needs pyarrow (the extra `parquet`), which is imported when a table is written.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from malletrain import pip_install
from malletrain.domain.errors import InvalidInput
from malletrain.replay.report.frames import ColumnTable
from malletrain.replay.result import Cause
from malletrain.replay.run import Replay

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

#: Rows of a row group of pilots.parquet, which are in memory at a time (about 40 MB).
PILOTS_PER_ROW_GROUP = 1 << 20
COMPRESSION = "zstd"


def require_pyarrow(option: str) -> None:
    """Ask for this before the replay, which may take minutes.

    Raises:
        InvalidInput: pyarrow is not installed; names `option`, and what to install.
    """
    if find_spec("pyarrow") is None:
        raise InvalidInput(option, f'parquet needs pyarrow: {pip_install("parquet")}, or replay.tables = "csv"')


def write_table(path: Path, table: ColumnTable) -> None:
    """Writes one row group. Floats that are nan (not known) become null."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: pa.array(values, from_pandas=True) for name, values in table.columns.items()}
    parquet.write_table(pa.table(columns), path, compression=COMPRESSION)


def write_pilots(path: Path, answer: Replay, name: str) -> None:
    """Writes every pilot of policy `name`, in the order in which they ended.

    Columns: node, start (UTC, to a millisecond), seconds (for which it ran), job, ended_by (`Cause`).
    """
    import pyarrow as pa
    from pyarrow import parquet

    log = answer.results[name].log
    texts = [
        pa.array(values, pa.string())
        for values in (answer.trace.nodes, [each.job.name for each in answer.jobs], [c.name.lower() for c in Cause])
    ]
    word = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([
        ("node", word), ("start", pa.timestamp("ms", "UTC")), ("seconds", pa.float64()), ("job", word),
        ("ended_by", word),
    ])  # fmt: skip

    def named(numbers: np.ndarray[Any, Any], names: pyarrow.Array) -> pyarrow.Array:
        return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), names)

    with parquet.ParquetWriter(path, schema, compression=COMPRESSION) as writer:
        for part in log.pilots.parts(PILOTS_PER_ROW_GROUP):
            start = np.rint(part.start * 1000).astype(np.int64)
            columns = [
                named(part.node, texts[0]), pa.array(start).cast(schema.field("start").type),
                pa.array(part.end - part.start), named(part.job, texts[1]), named(part.cause, texts[2]),
            ]  # fmt: skip
            writer.write_table(pa.table(columns, schema=schema))
