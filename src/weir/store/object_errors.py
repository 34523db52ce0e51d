"""Translation of obstore's exceptions; no other module interprets them.

What a response means (`refusal`, `failure`) is decided here for Lance's requests, too.
"""

from __future__ import annotations

import re

from obstore import exceptions

from weir.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuitable, WeirError
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_BODY = re.compile(
    r"(?:(Server returned non-2xx status code: \d{3}[^:<{]*|Server returned error response"
    r"|with status:? \d{3}[^:<{]*)|<\?xml|<Error\b).*",
    re.DOTALL,
)
"""From a response's body to the end of the text, since nothing marks where the body ends."""
_QUERY = re.compile(r"(?<=\S)\?[\w%.~\-]+=[^\s)]*")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "MissingCredentials")
_NEVER_SENT = ("ConnectionRefused", "dns error", "kind: Connect")
_ADDRESS = re.compile(r"performing [A-Z]+ (https?://[A-Za-z0-9.\-_\[\]:]+)")
_CAUSES = {
    "dns error": "its name cannot be resolved",
    "ConnectionRefused": "connection refused",
    "UnknownIssuer": "its certificate is not trusted",
    "certificate": "its certificate is not trusted",
    "ConnectionReset": "connection reset",
    "TimedOut": "timed out",
    "kind: Timeout": "timed out",
    "deadline has elapsed": "timed out",
}
_REDIRECTED = "redirect without LOCATION"
_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidToken",
    "InvalidAccessKeyId",
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
    "InvalidAuthenticationInfo",
    "AuthenticationFailed",
    "MissingSecurityHeader",
    "UserProjectMissing",
}
"""Codes of a 400 that concern the credentials; a retry changes nothing."""


class OutOfRange(StoreError):
    """416: the range starts after the object's end."""


def translate(error: Exception, *, uri: str, path: str = "", write: bool = False) -> Exception:
    """The exception of weir for one of obstore; the only place that interprets them.

    On S3 a 409 means 'again' and a 412 'exists', though obstore raises one class for both; on Azure
    a 409 means 'exists' (F-11). A failed write is a `LostAnswer` unless the response rules out that
    it was applied.
    """
    text = str(error)
    where = f"{uri}/{path}" if path else uri
    if not says_no_bucket(text):
        if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
            return ObjectMissing(path)
        if isinstance(error, exceptions.AlreadyExistsError):
            if status_in(text) == 409 and uri.startswith("s3:"):
                return StoreError(
                    f"{where}: a concurrent request conflicted with this one (409); try again"
                )
            return ObjectExists(path)
        if isinstance(error, exceptions.PreconditionError):
            return ObjectExists(path)  # 412: weir's only condition is that no object exists
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    refused = refusal(text, where=where, uri=uri, denied=denied)
    if refused is not None:
        return refused
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError):
        return _unsupported(where)
    if isinstance(
        error, exceptions.InvalidPathError | exceptions.UnknownConfigurationKeyError | ValueError
    ):
        return InvalidInput(f"{where}: {headline(error)}")
    if "builder error" in text:
        return InvalidInput(
            f"{uri}: no request could be made for this endpoint; a plain http:// endpoint needs "
            "allow_http='true' in storage_options"
        )
    return failure(text, where, write=write)


def status_in(text: str) -> int | None:
    """The status of the response that the text of an error quotes."""
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


def refusal(
    text: str, *, where: str, uri: str | None = None, denied: bool = False
) -> WeirError | None:
    """The error for a response that a retry does not change; None for any other text.

    For errors of obstore and of Lance, whose texts quote responses alike. `where` begins the
    message; `denied`: the error's class says so already.
    """
    status = status_in(text)
    if says_no_bucket(text):
        bucket = "" if uri is None else repr(uri.partition("://")[2].partition("/")[0])
        named = f"there is no bucket {bucket}" if bucket else "the bucket does not exist"
        return InvalidInput(f"{uri or where}: {named}; create it or correct the URI")
    if any(mark in text for mark in _NO_CREDENTIALS):  # whatever that address answered
        return StoreDenied(
            f"{uri or where}: no credentials found; pass them in storage_options or in the"
            " environment"
        )
    code = _CODE.search(text)
    # The response to a HEAD has no body with a code; S3 answers 400 when a token has expired.
    refused = status == 400 and (code.group(1) in _CREDENTIALS if code else "HEAD" in text)
    if denied or refused or status in (401, 403):
        reason = f" ({code.group(1)})" if code else ""
        return StoreDenied(
            f"{where}: access denied{reason}; check the credentials in storage_options or in the "
            "environment"
        )
    if _REDIRECTED in text or status == 301:
        return InvalidInput(
            f"{where}: the store redirected the request; set the bucket's own region or endpoint in"
            " storage_options"
        )
    return _unsupported(where) if status == 501 else None


def says_no_bucket(text: str) -> bool:
    """True for the text of an error which says that the bucket is not there."""
    return any(mark in text for mark in _NO_BUCKET)


def _unsupported(where: str) -> StoreUnsuitable:
    return StoreUnsuitable(f"{where}: the store does not support this operation; use another store")


def failure(text: str, where: str, *, write: bool = False) -> StoreError:
    """The error for a request that failed and may work later, distinguished by its status."""
    status = status_in(text)
    # Azurite returns nothing for a range that begins at the very end, which obstore rejects.
    if status == 416 or "StartTooLarge" in text:
        return OutOfRange(f"{where}: no such range")
    code = _CODE.search(text)
    said = f"status {status}" if status else _silence(text)
    what = f"{where}: the request failed with {said}" + (f" ({code.group(1)})" if code else "")
    # 3xx: redirected, as S3 does for a while with requests for a new bucket (307).
    refused = status is not None and 300 <= status < 500 and status != 408
    if write and not refused and not any(mark in text for mark in _NEVER_SENT):
        return LostAnswer(what + "; the write may still have been applied")
    return StoreError(what + "; the same call may work later")


def _silence(text: str) -> str:
    """Which address did not answer, and why as far as that is known; no part of a path or query."""
    asked = _ADDRESS.search(text)
    causes = [words for mark, words in _CAUSES.items() if mark in text]
    return (
        "no answer"
        + (f" from {asked.group(1)}" if asked else "")
        + "".join(f": {words}" for words in causes[:1])
    )


def without_body(text: str) -> str:
    """An error's text without the body of the response that it quotes, except for its code, and
    without the queries of URLs: S3 repeats the session token in a body, a SAS is in a query."""
    code = _CODE.search(text)
    reason = f" ({code.group(1)})" if code else ""
    return _QUERY.sub("", _BODY.sub(lambda found: (found.group(1) or "") + reason, text))


def headline(error: Exception) -> str:
    """The first line of obstore's message, without query strings."""
    line = str(error).partition("\n")[0]
    return re.sub(r"\?\S*", "", line)[:200]
