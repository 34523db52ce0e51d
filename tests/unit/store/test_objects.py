"""Each answer of a store, as obstore reports it, means one thing to weir."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from obstore import exceptions

from weir.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuitable, WeirError
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.store.object_errors import translate
from weir.store.objects import ObjStore
from weir.store.open import open_bare

SECRET = "topsecretvalue"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests += 1
        status, body = self.server.reply
        if status is None:  # hang up without an answer
            self.close_connection = True
            return
        data = b"" if self.command == "HEAD" else body.encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        self.wfile.write(head + data)

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)


class Server(ThreadingHTTPServer):
    reply = (200, "")
    requests = 0


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


def options(port):
    return {
        "aws_endpoint": f"http://127.0.0.1:{port}",
        "aws_access_key_id": "someid",
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


@pytest.fixture
def store(server):
    return open_bare("s3://bucket/some/prefix", options(server.server_port))


def error(code):
    return f"<Error><Code>{code}</Code><AWSAccessKeyId>someid</AWSAccessKeyId></Error>"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (412, "PreconditionFailed", ObjectExists),
        (304, "", ObjectExists),
        (409, "ConditionalRequestConflict", StoreError),
        (500, "InternalError", LostAnswer),
        (503, "SlowDown", LostAnswer),
        (None, "", LostAnswer),
        (408, "RequestTimeout", LostAnswer),
        (429, "TooManyRequests", StoreError),
        (400, "InvalidRequest", StoreError),
        (401, "", StoreDenied),
        (403, "SignatureDoesNotMatch", StoreDenied),
        (404, "NoSuchBucket", InvalidInput),
    ],
)
def test_answers_to_a_create(server, store, status, code, kind):
    server.reply = (status, error(code) if code else "")
    with pytest.raises((WeirError, ObjectExists)) as caught:
        store.put_if_absent("a/b", b"1")
    assert type(caught.value) is kind
    assert server.requests == 1, "F-9: the client must not repeat a conditional put by itself"
    assert "someid" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_f11_409_is_again_and_never_exists(server, store):
    server.reply = (409, error("ConditionalRequestConflict"))
    with pytest.raises(StoreError, match="409"):
        store.put_if_absent("a", b"1")


def test_409_of_azure_is_exists():
    said = exceptions.AlreadyExistsError("... status code: 409 Conflict: BlobAlreadyExists")
    assert isinstance(translate(said, uri="az://c/x", path="p", write=True), ObjectExists)
    assert type(translate(said, uri="s3://c/x", path="p", write=True)) is StoreError


def test_refused_connection_was_not_applied(server):
    server.shutdown()
    server.server_close()
    store = open_bare("s3://bucket", options(server.server_port))
    with pytest.raises(StoreError) as caught:
        store.put_if_absent("a", b"1")
    assert not isinstance(caught.value, LostAnswer)


@pytest.mark.parametrize("status", [500, None])
def test_failed_reads_are_no_lost_answers(server, store, status):
    server.reply = (status, "")
    for read in (
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.get_many(["a", "b"]),
        lambda: list(store.list("a")),
        lambda: store.list_folder("a"),
    ):
        with pytest.raises(StoreError) as caught:
            read()
        assert not isinstance(caught.value, LostAnswer)


@pytest.mark.parametrize("status", [500, None])
def test_failed_writes_are_lost_answers(server, store, status):
    server.reply = (status, "")
    for write in (
        lambda: store.put("a", b"1"),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(LostAnswer):
            write()


def test_missing_bucket_is_named(server, store):
    server.reply = (404, error("NoSuchBucket"))
    for call in (
        lambda: store.get("a"),
        lambda: list(store.list("")),
        lambda: store.put_if_absent("a", b""),
        lambda: store.list_folder("a"),
    ):
        with pytest.raises(InvalidInput, match="no bucket 'bucket'"):
            call()


MAPPED = {
    "AlreadyExistsError": ObjectExists,
    "BaseError": StoreError,
    "GenericError": StoreError,
    "InvalidPathError": InvalidInput,
    "JoinError": StoreError,
    "NotFoundError": ObjectMissing,
    "NotModifiedError": StoreError,
    "NotSupportedError": StoreUnsuitable,
    "PermissionDeniedError": StoreDenied,
    "PreconditionError": ObjectExists,
    "UnauthenticatedError": StoreDenied,
    "UnknownConfigurationKeyError": InvalidInput,
}


def test_every_exception_of_obstore_is_mapped():
    known = {
        name: kind
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert known.keys() == MAPPED.keys(), "obstore has a new exception: map it in translate()"
    for name, kind in known.items():
        assert type(translate(kind("x"), uri="s3://b", path="p")) is MAPPED[name], name


def test_errors_and_reprs_hold_no_secrets(server, store):
    assert SECRET not in repr(store)
    bad = options(server.server_port) | {"timeout": SECRET}
    with pytest.raises(InvalidInput) as caught:
        ObjStore("s3://bucket", bad)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_plain_http_needs_saying_so(server):
    config = options(server.server_port)
    del config["allow_http"]
    with pytest.raises(InvalidInput, match="allow_http"):
        open_bare("s3://bucket", config).head("a")
    assert server.requests == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "minio"])
@pytest.mark.parametrize("port", [65_536, 99_999, 10**12])
def test_an_endpoint_with_a_port_that_does_not_exist_is_refused(host, port):
    options = {"aws_endpoint": f"http://{host}:{port}"}
    with pytest.raises(InvalidInput, match="aws_endpoint"):
        ObjStore("s3://bucket/t", options)
    ObjStore("s3://bucket/t", {"aws_endpoint": f"http://{host}:65535"})


def unreachable(endpoint: str) -> ObjStore:
    options = {"aws_endpoint": endpoint, "aws_region": "x", "allow_http": "true"}
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "hunter2"}
    return ObjStore("s3://bucket/t", options | keys)


@pytest.mark.parametrize(
    ("endpoint", "cause"),
    [
        ("http://127.0.0.1:1", "connection refused"),
        ("http://no.such.host.invalid:9", "its name cannot be resolved"),
    ],
)
def test_an_endpoint_that_cannot_be_reached_is_named_with_the_cause(endpoint, cause):
    with pytest.raises(StoreError) as raised:
        unreachable(endpoint).get("a")
    assert f"no answer from {endpoint}: {cause}" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_no_credentials_found_is_not_access_denied(status):
    asked = "http://169.254.169.254/latest/api/token"
    text = f"Error performing PUT {asked} in 1ms - non-2xx status code: {status}: nothing here"
    error = translate(exceptions.PermissionDeniedError(text), uri="s3://bucket/t", path="a")
    assert isinstance(error, StoreDenied)
    assert "no credentials found" in str(error)
