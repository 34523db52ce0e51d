"""Error answers of a cloud become the right error, with retries only where they help."""

from collections.abc import Iterator

import pytest

from tests.support.answers import Answers, answering
from tests.support.local_shard import QuickClock
from weir.env import Env
from weir.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuitable
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.store.open import open_store


@pytest.fixture
def cloud() -> Iterator[Answers]:
    with answering() as server:
        yield server


def ask(cloud: Answers, verb: str, kind: str = "s3"):
    """Return the error of one call, and the number of requests it took."""
    options = {"s3": cloud.s3_options, "gs": cloud.gs_options, "az": cloud.az_options}[kind]()
    store = open_store(f"{kind}://bucket/table", options, env=Env(clock=QuickClock()))
    call = {
        "create": lambda: store.put_if_absent("k", b"x"),
        "put": lambda: store.put("k", b"x"),
        "get": lambda: store.get("k"),
        "head": lambda: store.head("k"),
        "list": lambda: list(store.list("")),
    }[verb]
    with pytest.raises(Exception) as caught:
        call()
    assert "hunter2" not in str(caught.value)
    return caught.value, len(cloud.asked)


CREDENTIALS = ["ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed"]


@pytest.mark.parametrize("verb", ["create", "put", "get", "head", "list"])
@pytest.mark.parametrize("code", CREDENTIALS)
def test_f11_a_400_about_credentials_is_denied_at_once(cloud, verb, code):
    cloud.say(400, code)
    error, requests = ask(cloud, verb)
    assert type(error) is StoreDenied
    assert verb == "head" or code in str(error)
    assert requests == 1


@pytest.mark.parametrize("kind", ["gs", "az"])
@pytest.mark.parametrize(("status", "code"), [(401, "Unauthorized"), (403, "AuthenticationFailed")])
def test_f11_refused_credentials_are_denied_at_once_on_every_cloud(cloud, kind, status, code):
    cloud.say(status, code)
    error, requests = ask(cloud, "get", kind)
    assert type(error) is StoreDenied
    assert requests == 1


@pytest.mark.parametrize("verb", ["create", "put", "get", "list"])
def test_f11_a_redirect_names_region_and_endpoint_and_nothing_was_written(cloud, verb):
    cloud.say(301, "PermanentRedirect")
    error, requests = ask(cloud, verb)
    assert type(error) is InvalidInput
    assert "region" in str(error)
    assert requests == 1


def test_f11_a_young_bucket_s_307_is_tried_again_and_lost_nothing(cloud):
    cloud.say(307, "TemporaryRedirect", location="http://127.0.0.1:1/elsewhere")
    error, requests = ask(cloud, "create")
    assert type(error) is StoreError, "refused, not lost"
    assert requests > 1


@pytest.mark.parametrize("verb", ["create", "put"])
def test_f11_a_501_means_that_the_store_cannot_and_not_that_an_answer_was_lost(cloud, verb):
    cloud.say(501, "NotImplemented")
    error, requests = ask(cloud, verb)
    assert type(error) is StoreUnsuitable
    assert requests == 1


@pytest.mark.parametrize(
    ("kind", "status", "code", "expected"),
    [
        ("s3", 412, "PreconditionFailed", ObjectExists),
        ("gs", 412, "PreconditionFailed", ObjectExists),
        ("az", 412, "ConditionNotMet", ObjectExists),
        ("az", 409, "BlobAlreadyExists", ObjectExists),
        ("s3", 409, "ConditionalRequestConflict", StoreError),
        ("s3", 404, "NoSuchBucket", InvalidInput),
        ("gs", 404, "NoSuchBucket", InvalidInput),
        ("az", 404, "ContainerNotFound", InvalidInput),
        ("s3", 503, "SlowDown", LostAnswer),
        ("gs", 503, "ServiceUnavailable", LostAnswer),
        ("az", 503, "ServerBusy", LostAnswer),
        ("s3", 429, "TooManyRequests", StoreError),
        ("s3", 500, "InternalError", LostAnswer),
    ],
)
def test_f11_each_answer_to_a_create_has_its_meaning(cloud, kind, status, code, expected):
    cloud.say(status, code)
    error, requests = ask(cloud, "create", kind)
    assert type(error) is expected
    assert (requests > 1) is issubclass(expected, StoreError)


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_missing_object_is_missing_on_every_cloud(cloud, kind):
    cloud.say(404, {"az": "BlobNotFound"}.get(kind, "NoSuchKey"))
    error, requests = ask(cloud, "get", kind)
    assert type(error) is ObjectMissing
    assert requests == 1


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_options_of_the_http_client_count_beside_others(cloud, kind):
    """Plain http is refused unless allowed, and requests go to a proxy instead of the host."""
    options = {"s3": cloud.s3_options, "gs": cloud.gs_options, "az": cloud.az_options}[kind]()
    cloud.say(404, {"az": "BlobNotFound"}.get(kind, "NoSuchKey"))
    elsewhere = {k: "http://store.invalid/devstoreaccount1" for k in options if k.endswith("url")}
    elsewhere |= {k: "http://store.invalid/devstoreaccount1" for k in options if "endpoint" in k}
    proxied = options | elsewhere | {"proxy_url": cloud.endpoint, "timeout": "9s"}
    with pytest.raises(ObjectMissing):
        open_store(f"{kind}://bucket/t", proxied).get("k")
    assert cloud.asked[0][1].startswith("http://store.invalid/")
    plain = {k: v for k, v in options.items() if k != "allow_http"}
    with pytest.raises(InvalidInput, match="allow_http"):
        open_store(f"{kind}://bucket/t", plain).get("k")


@pytest.mark.parametrize("address", ["nonsense", "http://", "::", "http://a b", "ftp://host", ""])
@pytest.mark.parametrize("key", ["aws_endpoint", "google_base_url", "azure_endpoint"])
def test_a_malformed_endpoint_is_named_before_anything_is_sent(address, key):
    kind = {"a": "s3", "g": "gs"}.get(key[0], "az") if key != "azure_endpoint" else "az"
    more = {"azure_storage_account_name": "a"} if kind == "az" else {}
    with pytest.raises(InvalidInput, match=key):
        open_store(f"{kind}://bucket/t", {key: address, **more})


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    ("path", "said"),
    [("a%20b", "%"), ("a/%41", "%"), ("a//b", "//"), ("a/../b", r"\.\."), (".", r"\.")],
)
def test_a_uri_that_lance_and_weir_would_read_differently_is_refused(kind, path, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        open_store(f"{kind}://bucket/{path}")
    assert "storage_options" not in str(caught.value)
