"""A new table's columns from a DataFrame, Arrow data, a dict of types or a pydantic model."""

import asyncio
import datetime as dt
import enum
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest

import weir
from weir import aio
from weir.errors import InvalidInput
from weir.format.schema_forms import as_schema

WHEN = dt.datetime(2024, 7, 1, 9, 0, 0, 5, dt.UTC)
COLUMNS = {
    "id": [1, 2],
    "name": ["a", None],
    "at": [WHEN, None],
    "tags": [["x"], []],
    "inner": [{"a": "x", "b": 1}, None],
}
WANTED = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("a", pa.string()), ("b", pa.int64())])),
    ]
)
ARROW = pa.Table.from_pylist(
    [{name: column[i] for name, column in COLUMNS.items()} for i in range(2)], schema=WANTED
)


def made(tmp_path: Path, schema: Any, rows: Any) -> list[dict[str, Any]]:
    """The rows as a table of those columns gives them back."""
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put(rows)
        found: list[dict[str, Any]] = table.scan(order_by="id").to_table().to_pylist()
    return found


FRAMES: dict[str, Any] = {
    "polars": pl.DataFrame(ARROW),
    "pandas": ARROW.to_pandas(),
    "pandas on arrow": ARROW.to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_dataframe_gives_plain_types_and_its_rows_fit(tmp_path: Path, kind: str) -> None:
    frame = FRAMES[kind]
    assert as_schema(frame).equals(WANTED, check_metadata=True)
    assert made(tmp_path, frame, frame) == ARROW.to_pylist()


def test_a_lazy_frame_and_a_schema_of_polars_have_columns_too() -> None:
    frame = pl.DataFrame(ARROW)
    assert as_schema(frame.lazy()) == as_schema(frame.schema) == WANTED  # type: ignore[arg-type]


def test_categories_are_columns_of_their_values(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2], "c": pd.Categorical(["a", "b"])})
    assert as_schema(frame).field("c").type == pa.string()
    assert made(tmp_path, frame, frame) == [{"id": 1, "c": "a"}, {"id": 2, "c": "b"}]
    many = pl.DataFrame({"id": [1], "c": pl.Series(["a"], dtype=pl.Categorical)})
    assert as_schema(many).field("c").type == pa.string()


@pytest.mark.parametrize("form", ["table", "batch", "reader"])
def test_arrow_data_gives_its_exact_types_and_is_not_read(tmp_path: Path, form: str) -> None:
    exact = pa.schema([("id", pa.int32()), ("s", pa.large_string())], metadata={"pandas": "{}"})
    data = pa.Table.from_pylist([{"id": 1, "s": "x"}], schema=exact)
    given = {"table": data, "batch": data.to_batches()[0], "reader": data.to_reader()}[form]
    assert as_schema(given).equals(exact.remove_metadata(), check_metadata=True)
    assert made(tmp_path, given, given) == data.to_pylist(), "a reader still has its rows"


@pytest.mark.parametrize("ids", [[7, 9, 8], [7, 8, 9], [7]])
def test_a_named_index_is_a_column_and_an_unnamed_one_is_not(
    tmp_path: Path, ids: list[int]
) -> None:
    """Of [7, 8, 9] pandas makes a range, which Arrow takes for no column."""
    frame = pd.DataFrame({"id": ids, "v": 1.5}).set_index("id")
    rows = [{"v": 1.5, "id": i} for i in sorted(ids)]
    assert made(tmp_path / "named", frame, frame) == rows
    unnamed = pd.DataFrame({"v": 1.5, "id": ids}, index=[number + 1 for number in ids])
    assert made(tmp_path / "unnamed", unnamed, unnamed) == rows
    table = weir.open(tmp_path / "named" / "t")
    assert table.get(frame).num_rows == len(ids)


def test_an_index_of_several_levels_is_several_columns() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "v": 1.5}).set_index(["a", "b"])
    assert as_schema(frame).names == ["v", "a", "b"]
    assert as_schema(frame.set_index("v", drop=False)).names == ["v"]
    numbered = pd.DataFrame({"0": ["x"]}, index=pd.Index([7], name=0))
    assert as_schema(numbered) == pa.schema([("0", pa.string())]), "the column is not replaced"


@pytest.mark.parametrize("nothing", [pl.DataFrame({"a": [None]}), pd.DataFrame({"a": [None]})])
def test_a_column_of_nulls_has_no_type(nothing: Any) -> None:
    with pytest.raises(InvalidInput, match="'a' holds nulls only"):
        as_schema(nothing)


def test_a_dict_gives_python_types_as_a_model_does() -> None:
    kinds = {"id": int, "v": str, "x": float, "at": dt.datetime, "inner": Inner}
    made = as_schema(kinds)
    assert made == pa.schema(
        [
            ("id", pa.int64()),
            ("v", pa.string()),
            ("x", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
            ("inner", pa.struct([pa.field("a", pa.string(), nullable=False), ("b", pa.int64())])),
        ]
    )
    with pytest.raises(InvalidInput, match="column 'v' is object, for which there is no"):
        as_schema({"v": object})


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (list[str], pa.list_(pa.field("item", pa.string(), nullable=False))),
        (dict[str, int], pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        (int | None, pa.int64()),
        (Annotated[float, pa.float32()], pa.float32()),
        (Literal["a", "b"], pa.string()),
    ],
    ids=repr,
)
def test_a_dict_takes_every_type_that_a_model_takes(kind: Any, wanted: pa.DataType) -> None:
    """The error about `object` says to write `Annotated[...]`, which was refused."""
    assert as_schema({"v": kind}) == pa.schema([("v", wanted)])


def test_a_dict_gives_types_as_text_or_as_pyarrow_has_them(tmp_path: Path) -> None:
    given = {
        "id": "int64",
        "e": "list<float>[3]",
        "f": "float32[3]",
        "at": "timestamp[us, UTC]",
        "n": "int64!",
        "s": pa.large_string(),
    }
    wanted = pa.schema(
        [
            ("id", pa.int64()),
            ("e", pa.list_(pa.float32(), 3)),
            ("f", pa.list_(pa.float32(), 3)),
            ("at", pa.timestamp("us", "UTC")),
            pa.field("n", pa.int64(), nullable=False),
            ("s", pa.large_string()),
        ]
    )
    assert as_schema(given) == wanted
    rows = [{"id": 1, "e": [1, 2, 3], "f": [1, 2, 3], "at": WHEN, "n": 1, "s": "x"}]
    assert made(tmp_path, given, rows) == rows


class Color(enum.StrEnum):
    RED = "red"


class Inner(pydantic.BaseModel):
    a: str
    b: int | None = None


class Model(pydantic.BaseModel):
    id: int
    name: str | None = None
    raw: bytes = b""
    ok: bool = True
    x: float = 0.5
    small: Annotated[float, pa.float32()] = 0.5
    day: dt.date = dt.date(2024, 7, 1)
    at: dt.datetime = WHEN
    aware: pydantic.AwareDatetime = WHEN
    naive: pydantic.NaiveDatetime = WHEN.replace(tzinfo=None)
    span: dt.timedelta = dt.timedelta(seconds=5)
    ref: UUID = UUID(int=5)
    tags: list[str] = pydantic.Field(default_factory=list)
    vector: Annotated[list[float], pydantic.Field(min_length=2, max_length=2)] = [1.0, 2.0]
    counts: dict[str, int] = pydantic.Field(default_factory=dict)
    inner: Inner | None = None
    price: Decimal = pydantic.Field(Decimal("9.50"), max_digits=10, decimal_places=2)
    kind: Literal["a", "b"] = "a"
    color: Color = Color.RED
    secret: str = pydantic.Field("x", exclude=True)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.id


def test_a_pydantic_model_gives_the_columns_that_its_objects_fill(tmp_path: Path) -> None:
    schema = as_schema(Model)
    types = {field.name: (field.type, field.nullable) for field in schema}
    assert types == {
        "id": (pa.int64(), False),
        "name": (pa.string(), True),
        "raw": (pa.binary(), False),
        "ok": (pa.bool_(), False),
        "x": (pa.float64(), False),
        "small": (pa.float32(), False),
        "day": (pa.date32(), False),
        "at": (pa.timestamp("us", "UTC"), False),
        "aware": (pa.timestamp("us", "UTC"), False),
        "naive": (pa.timestamp("us"), False),
        "span": (pa.duration("us"), False),
        "ref": (pa.uuid(), False),
        "tags": (pa.list_(pa.field("item", pa.string(), False)), False),
        "vector": (pa.list_(pa.float32(), 2), False),
        "counts": (pa.map_(pa.string(), pa.field("value", pa.int64(), False)), False),
        "inner": (pa.struct([pa.field("a", pa.string(), False), ("b", pa.int64())]), True),
        "price": (pa.decimal128(10, 2), False),
        "kind": (pa.string(), False),
        "color": (pa.string(), False),
        "twice": (pa.int64(), False),
    }
    full = Model(id=1, name="n", tags=["t"], counts={"k": 1}, inner=Inner(a="x"))
    found = made(tmp_path, Model, [full, Model(id=2)])
    for row, model in zip(found, [full, Model(id=2)], strict=True):
        row["counts"] = dict(row["counts"])
        assert row == model.model_dump()


class Itself(pydantic.BaseModel):
    id: int
    more: "list[Itself]"


class Either(pydantic.BaseModel):
    id: int | str


class Unbounded(pydantic.BaseModel):
    price: Decimal


class Odd(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    what: Path | None


class Mixed(pydantic.BaseModel):
    what: Literal["a", 1]


WRONG: dict[str, tuple[Any, str]] = {
    "itself": (Itself, "contains itself"),
    "either": (Either, "Either.id may be of several types"),
    "unbounded": (Unbounded, "max_digits"),
    "odd": (Odd, "Odd.what is Path"),
    "mixed": (Mixed, "several types"),
    "type": ({"a": "int65"}, "column 'a': unknown type 'int65'"),
    "digits": ({"a": "decimal(80,2)"}, "1 to 38 digits"),
    "no type": ({"a": 5}, "a type is text"),
    "no name": ({1: "int64"}, "must be text"),
    "number": (5, "a dict of names and types"),
    "class": (Path, "got the class Path"),
    "list": (["id"], "got list"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_gives_no_columns_is_refused_and_nothing_is_written(
    tmp_path: Path, wrong: str
) -> None:
    given, told = WRONG[wrong]
    with pytest.raises(InvalidInput, match=told):
        weir.create(str(tmp_path / "t"), given)
    assert not (tmp_path / "t").exists()


def test_every_way_to_make_a_table_takes_them(tmp_path: Path) -> None:
    given = {"id": "int64", "v": "string"}
    db = weir.connect(tmp_path)
    assert db.create_table("a", given, primary_key="id").schema.names == ["id", "v"]

    async def run() -> list[str]:
        await aio.create(str(tmp_path / "b"), pl.DataFrame(ARROW), primary_key="id")
        table = await aio.connect(tmp_path).create_table("c", Model, primary_key="id")
        names: list[str] = (await table.schema()).names
        return names

    assert asyncio.run(run())[:2] == ["id", "name"]
