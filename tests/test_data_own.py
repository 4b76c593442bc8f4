"""Data files of one's own: what is read, split, labelled, standardised, and refused."""

import json

import numpy as np
import pytest

from onebasin.cli import main as cli
from onebasin.data import DataFileError, read_dataset

pytestmark = pytest.mark.fast
ROWS = 20


def table(path, rows=ROWS, kind="real", header="a,b,c,y"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)) * [1, 10, 0] + [0, 5, 7]
    y = {
        "real": [f"{value}" for value in x[:, 0] * 3 + 100],
        "word": ["cat" if value > 0 else "ant" for value in x[:, 0]],
        "whole": [str(i % 4 + 3) for i in range(rows)],
    }[kind]
    lines = [",".join([*map(str, one), label]) for one, label in zip(x.tolist(), y, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path, x


def test_a_table_is_split_and_standardised_by_its_training_rows(tmp_path):
    path, x = table(tmp_path / "t.csv")
    data = read_dataset(path, target="y", test_share=0.3)
    plain = read_dataset(path, target="y", test_share=0.3, standardise="none")
    assert (len(data.train), len(data.test)) == (14, 6)
    rows = np.concatenate([plain.train.x, plain.test.x])
    assert sorted(rows[:, 0]) == sorted(x[:, 0].astype(np.float32))
    mean, std = plain.train.x.mean(0), plain.train.x.std(0)
    std[2] = 1  # a column that never changes
    for mine, own in ((data.train, plain.train), (data.test, plain.test)):
        assert mine.x == pytest.approx((own.x - mean) / std, abs=1e-5)
        scaled = (own.y - plain.train.y.mean()) / plain.train.y.std()
        assert mine.y == pytest.approx(scaled, abs=1e-5)
    assert data.num_classes is None
    assert data.num_outputs == 1
    assert data.record is not None
    assert data.record["columns"] == ["a", "b", "c"]


def test_new_data_are_standardised_as_those_of_the_fit(tmp_path):
    path, _ = table(tmp_path / "t.csv")
    first = read_dataset(path, target="y")
    assert first.record is not None
    record = json.loads(json.dumps(first.record))  # as a file keeps it
    again = read_dataset(path, record=record)
    assert np.array_equal(again.test.x, first.test.x)
    assert np.array_equal(again.test.y, first.test.y)
    shifted = tmp_path / "shifted.csv"
    lines = path.read_text().splitlines()
    shifted.write_text("\n".join([lines[0], *lines[1:6]]) + "\n")
    few = read_dataset(shifted, record=record)
    mean, std = (np.array(record["scaling"]["x"][name]) for name in ("mean", "std"))
    raw = read_dataset(shifted, target="y", standardise="none")
    assert few.train.x == pytest.approx((raw.train.x - mean) / std, abs=1e-5)


def test_words_are_labels_in_the_order_of_the_alphabet(tmp_path):
    path, _ = table(tmp_path / "t.csv", kind="word")
    data = read_dataset(path, target="y")
    assert data.num_classes == 2
    assert data.record is not None
    assert data.record["labels"] == ["ant", "cat"]
    words = [line.rsplit(",", 1)[1] for line in path.read_text().splitlines()[1:]]
    counts = np.bincount(np.concatenate([data.train.y, data.test.y]))
    assert counts.tolist() == [words.count("ant"), words.count("cat")]
    assert read_dataset(path, target="y", likelihood="bernoulli").num_outputs == 1


def test_whole_numbers_in_a_table_are_what_one_says(tmp_path):
    path, _ = table(tmp_path / "t.csv", kind="whole")
    with pytest.raises(DataFileError, match="may be labels or amounts; say likelihood="):
        read_dataset(path, target="y")
    data = read_dataset(path, target="y", likelihood="categorical")
    assert data.record is not None
    assert data.record["labels"] == [3, 4, 5, 6]
    assert read_dataset(path, target="y", likelihood="poisson").num_classes is None


def test_parquet_holds_what_a_csv_holds(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path, x = table(tmp_path / "t.csv", kind="word")
    words = [line.rsplit(",", 1)[1] for line in path.read_text().splitlines()[1:]]
    columns = {name: x[:, i] for i, name in enumerate("abc")} | {"y": words}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    first, second = (read_dataset(tmp_path / f"t.{s}", target="y") for s in ("csv", "parquet"))
    assert np.array_equal(first.train.x, second.train.x)
    assert np.array_equal(first.test.y, second.test.y)


def test_archives_and_folders_keep_their_own_split(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "x_train": rng.integers(0, 256, (6, 4, 4, 1), dtype=np.uint8),
        "y_train": np.arange(6) % 3,
        "x_test": rng.integers(0, 256, (2, 4, 4, 1), dtype=np.uint8),
        "y_test": np.array([0, 1]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    (tmp_path / "folder").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    for path in (tmp_path / "a.npz", tmp_path / "folder"):
        data = read_dataset(path)
        assert data.num_classes == 3
        assert data.train.x == pytest.approx(arrays["x_train"] / 255, abs=1e-7)
        assert data.test.y.tolist() == [0, 1]
        with pytest.raises(DataFileError, match="a test split of its own; drop test_share="):
            read_dataset(path, test_share=0.2)


WRONG = [
    ("a,b,c,y\n1,2,3\n", "has 3 cells in row 2 where the header has 4"),
    ("a,b,c,y\n1,,3,4\n2,2,3,4\n", "column 'b' of .* has no value in row 1"),
    ("a,b,c,y\n1,x,3,4.5\n2,2,3,4.5\n", "column 'b' of .* holds words .'x'.*drop=.'b',"),
    ("a,b,b,y\n1,2,3,4\n", "two columns called 'b'"),
    ("a,b,c,z\n1,2,3,4\n", "has no column 'y'; it has a, b, c, z"),
    ("a,b,c,y\n", "holds no rows"),
    ("y\n1.5\n2.5\n", "no column left to predict from"),
    ("a,y\n1,2.5\n", "training and testing need at least one each"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_table_is_refused(text, message, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises((DataFileError, ValueError), match=message):
        read_dataset(path, target="y")


def test_wrong_files_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "uneven.npz", x=np.zeros((3, 2)), y=np.zeros(2))
    np.savez(tmp_path / "objects.npz", x=np.array([{}]), y=np.zeros(1))
    x, y = np.zeros((6, 2)), np.arange(6.0) / 2
    np.savez(tmp_path / "splits.npz", x_train=x, y_train=y, x_test=x[:, :1], y_test=y)
    np.savez(tmp_path / "targets.npz", x_train=x, y_train=y, x_test=x, y_test=x)
    np.savez(tmp_path / "columns.npz", x=x[:, :0], y=y)
    np.savez(tmp_path / "fine.npz", x=np.zeros((9, 2)), y=np.arange(9.0) / 2)
    for name, message in (
        ("text.npz", "not a whole .npz"),
        ("other.npz", "holds a; it must hold x_train, y_train"),
        ("uneven.npz", "3 rows of x but 2 of y"),
        ("splits.npz", r"one example of x_train has shape \(2,\) and one of x_test \(1,\)"),
        ("targets.npz", r"one example of y_train has shape \(\) and one of y_test \(2,\)"),
        ("columns.npz", r"x of .* has shape \(6, 0\), so no numbers"),
        ("objects.npz", "not a whole .npz of plain arrays"),
        ("missing.npz", "there is no data file"),
    ):
        with pytest.raises(DataFileError, match=message):
            read_dataset(tmp_path / name)
    with pytest.raises(DataFileError, match=r"target= and drop= are for \.csv"):
        read_dataset(tmp_path / "fine.npz", target="y")
    with pytest.raises(DataFileError, match="fractions, not labels"):
        read_dataset(tmp_path / "fine.npz", likelihood="categorical")
    with pytest.raises(ValueError, match="test_share is 2; give a share between 0 and 1"):
        read_dataset(tmp_path / "fine.npz", test_share=2)
    with pytest.raises(DataFileError, match="name the column to predict with target="):
        read_dataset(table(tmp_path / "t.csv")[0])


def test_the_shell_says_what_a_file_holds(tmp_path, capsys):
    path, _ = table(tmp_path / "t.csv", kind="word")
    cli.main(["data", str(path), "--target", "y", "--drop", "c"])
    told = capsys.readouterr().out
    for words in ("16 train + 4 test", "2 classes", "features: a, b\n", "labels: ant, cat"):
        assert words in told
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", str(path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("name the column to predict with --target\n")


def test_words_after_thousands_of_numbers_make_a_column_of_words(tmp_path):
    cells = [str(i) for i in range(2500)]
    path = tmp_path / "t.csv"

    def written(column):
        path.write_text("x,y\n" + "".join(f"{i}.5,{cell}\n" for i, cell in enumerate(column)))
        return path

    whole = read_dataset(written(cells), target="y", likelihood="gaussian", standardise="none")
    assert sorted([*whole.train.y, *whole.test.y]) == list(range(2500))
    mixed = read_dataset(written([*cells[:2400], *100 * ["last"]]), target="y")
    assert mixed.record is not None
    assert mixed.record["labels"] == sorted([*cells[:2400], "last"])
    late = read_dataset(written([*cells[:2400], *100 * ["0.25"]]), target="y", standardise="none")
    assert sum(np.isclose([*late.train.y, *late.test.y], 0.25)) == 100
    with pytest.raises(DataFileError, match="has no value in row 2401"):
        read_dataset(written([*cells[:2400], *100 * ["nan"]]), target="y")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e60])
def test_numbers_that_are_not_finite_are_refused(tmp_path, bad):
    x, y = np.ones((10, 3)), np.arange(10.0)
    for name in ("x", "y"):
        arrays = {"x": x.copy(), "y": y.copy()}
        arrays[name].flat[5] = bad
        np.savez(tmp_path / "d.npz", **arrays)
        with pytest.raises(DataFileError, match=r"d\.npz holds NaN, infinity, or numbers too"):
            read_dataset(tmp_path / "d.npz")
    if not np.isnan(bad):
        lines = "".join(f"{i},{bad if i == 5 else i}\n" for i in range(10))
        (tmp_path / "d.csv").write_text("a,y\n" + lines)
        with pytest.raises(DataFileError, match=r"d\.csv holds NaN, infinity, or numbers too"):
            read_dataset(tmp_path / "d.csv", target="y")


def test_an_archive_that_promises_more_than_it_holds_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((12, 3), np.float32), y=np.arange(12))
    whole = path.read_bytes()
    for shape in (b"(11, 3)", b"(99, 3)", b"(9999999999, 3)"):
        header = b"(12, 3), }" + b" " * 30
        assert header in whole
        path.write_bytes(whole.replace(header, (shape + b", }").ljust(len(header))))
        with pytest.raises(DataFileError, match=r"d\.npz is not a whole \.npz"):
            read_dataset(path)
    np.savez(path, x=np.array([{}], object), y=np.arange(1))
    with pytest.raises(DataFileError, match="could run code"):
        read_dataset(path)


def test_a_table_that_promises_more_than_it_can_hold_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = 4_000_000
    table = pyarrow.table({"a": np.zeros(rows, np.int8), "y": np.zeros(rows, np.int8)})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 30_000
    with pytest.raises(DataFileError, match="promises 32000000 bytes, too many for a file"):
        read_dataset(tmp_path / "t.parquet", target="y", likelihood="categorical")


def test_a_parquet_column_that_lost_its_rows_is_refused(tmp_path):
    """Damage can leave a file readable whose columns are not equally long."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    table = pyarrow.table({"a": np.arange(9.0), "y": np.arange(9.0) / 2})
    parquet.write_table(table, path, use_dictionary=False, compression="none")
    whole, seen = path.read_bytes(), set()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            data = read_dataset(path, target="y")
        except DataFileError as error:
            seen |= {word for word in ("rows, not all",) if word in str(error)}
        else:
            assert len(data.train) + len(data.test) == 9
    assert seen == {"rows, not all"}
