"""Downloads of data, from a local server."""

import hashlib
import http.server
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from data_files import cifar_bytes, tar_bytes, write_mnist
from onebasin.data import SOURCES, DataFileError, Download, load_dataset

pytestmark = pytest.mark.usefixtures("no_data_folder")


class Server:
    """An HTTP server over a dictionary of files; `requests` lists the requested paths."""

    def __init__(self, files: dict[str, bytes], promise: int = 0):
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                data = files.get(self.path)
                self.send_response(404 if data is None else 200)
                body = data or b"no such file"
                self.send_header("Content-Length", str(len(body) + promise))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def published_at(source, files: dict[str, bytes], *addresses: str):
    """`source` as if these files were published at these addresses."""
    return replace(
        source,
        downloads=tuple(
            Download(name, hashlib.md5(data).hexdigest(), tuple(f"{a}/{name}" for a in addresses))
            for name, data in files.items()
        ),
    )


def files_in(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


@pytest.fixture
def mnist_files(tmp_path):
    write_mnist(tmp_path / "published")
    order = [d.name for d in SOURCES["mnist"].downloads]
    return {name: (tmp_path / "published" / name).read_bytes() for name in order}


def test_download_then_cache(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    with Server({f"/{name}": data for name, data in mnist_files.items()}) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        first = load_dataset(source, cache=cache)
        assert len(server.requests) == 4
        again = load_dataset(source, cache=cache)
        assert len(server.requests) == 4
    offline = load_dataset(source, cache=cache)
    for data in (again, offline):
        np.testing.assert_array_equal(data.train.x, first.train.x)
    assert files_in(cache) == sorted(mnist_files)
    assert first.available == (7, 3)


def test_download_continues_where_the_cache_is_incomplete(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    with Server({f"/{name}": data for name, data in mnist_files.items()}) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        load_dataset(source, cache=cache)
        (cache / "MNIST/raw/t10k-images-idx3-ubyte.gz").unlink()
        load_dataset(source, cache=cache)
        assert server.requests[4:] == ["/t10k-images-idx3-ubyte.gz"]


def test_the_next_mirror_is_tried(tmp_path, mnist_files):
    good = {f"/{name}": data for name, data in mnist_files.items()}
    bad = {**good, "/train-images-idx3-ubyte.gz": b"something else"}
    bad.pop("/train-labels-idx1-ubyte.gz")
    with Server(bad) as first, Server(good) as second:
        source = published_at(SOURCES["mnist"], mnist_files, first.address, second.address)
        data = load_dataset(source, cache=tmp_path / "cache")
    assert second.requests == ["/train-images-idx3-ubyte.gz", "/train-labels-idx1-ubyte.gz"]
    assert data.available == (7, 3)


def test_a_wrong_checksum_leaves_nothing(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    tampered = {f"/{name}": data + b"\0" for name, data in mnist_files.items()}
    with Server(tampered) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        with pytest.raises(DataFileError, match=r"train-images.*checksum is wrong") as caught:
            load_dataset(source, cache=cache)
    assert server.address in str(caught.value)
    assert "ONEBASIN_DATA" in str(caught.value)
    assert files_in(cache) == []


def test_an_interrupted_download_leaves_nothing(tmp_path, mnist_files):
    cache = tmp_path / "cache"
    files = {f"/{name}": data for name, data in mnist_files.items()}
    with Server(files, promise=10) as server:
        source = published_at(SOURCES["mnist"], mnist_files, server.address)
        with pytest.raises(FileNotFoundError, match="could not be downloaded"):
            load_dataset(source, cache=cache)
    assert files_in(cache) == []


def test_cifar_archive_is_downloaded_and_kept_whole(tmp_path):
    archive = tar_bytes(
        {
            "cifar-100-binary/train.bin": cifar_bytes([[0, 42], [1, 7]]),
            "cifar-100-binary/test.bin": cifar_bytes([[19, 99]]),
        }
    )
    files = {"cifar-100-binary.tar.gz": archive}
    cache = tmp_path / "cache"
    with Server({"/cifar-100-binary.tar.gz": archive}) as server:
        source = published_at(SOURCES["cifar100"], files, server.address)
        load_dataset(source, cache=cache)
        data = load_dataset(source, cache=cache)
        assert len(server.requests) == 1
    np.testing.assert_array_equal(data.train.y, [42, 7])
    np.testing.assert_array_equal(data.test.y, [99])
    assert files_in(cache) == ["cifar-100-binary.tar.gz"]


def test_no_network_and_no_folder(tmp_path, mnist_files):
    with socket.socket() as unused:  # a port without a listener
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        source = published_at(SOURCES["mnist"], mnist_files, address)
        with pytest.raises(FileNotFoundError) as caught:
            load_dataset(source, cache=tmp_path / "cache")
    message = str(caught.value)
    for name in mnist_files:
        assert name in message
    for word in ("root=", "ONEBASIN_DATA", str(tmp_path / "cache/MNIST/raw")):
        assert word in message


@pytest.mark.fast
def test_published_checksums_are_distinct_md5s():
    downloads = [d for source in SOURCES.values() for d in source.downloads]
    assert len({d.md5 for d in downloads}) == len(downloads) == 10
    for download in downloads:
        assert len(download.md5) == 32
        int(download.md5, 16)
        assert len(download.urls) >= 2
        assert all(url.endswith(download.name) for url in download.urls)
