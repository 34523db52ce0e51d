"""Translation of obstore's exceptions; no other module interprets them."""

from __future__ import annotations

import re

from obstore import exceptions

from weir.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuitable
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "MissingCredentials")
_NEVER_SENT = ("ConnectionRefused", "dns error", "kind: Connect")
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
    found = _STATUS.search(text)
    status = int(found.group(1)) if found else None
    where = f"{uri}/{path}" if path else uri
    if any(mark in text for mark in _NO_BUCKET):
        bucket = uri.partition("://")[2].partition("/")[0]
        return InvalidInput(f"{uri}: there is no bucket {bucket!r}; create it or correct the URI")
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return ObjectMissing(path)
    if isinstance(error, exceptions.AlreadyExistsError):
        if status == 409 and uri.startswith("s3:"):
            return StoreError(
                f"{where}: a concurrent request conflicted with this one (409); try again"
            )
        return ObjectExists(path)
    if isinstance(error, exceptions.PreconditionError):
        return ObjectExists(path)  # 412: weir's only condition is that no object exists
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    code = _CODE.search(text)
    reason = f" ({code.group(1)})" if code else ""
    # The response to a HEAD has no body with a code; S3 answers 400 when a token has expired.
    refused = status == 400 and (code.group(1) in _CREDENTIALS if code else "HEAD" in text)
    if denied or refused or status in (401, 403):
        return StoreDenied(
            f"{where}: access denied{reason}; check the credentials in storage_options or in the "
            "environment"
        )
    if any(mark in text for mark in _NO_CREDENTIALS):
        return StoreDenied(
            f"{uri}: no credentials found; pass them in storage_options or in the environment"
        )
    if _REDIRECTED in text or status == 301:
        return InvalidInput(
            f"{where}: the store redirected the request; set the bucket's own region or endpoint in"
            " storage_options"
        )
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError) or status == 501:
        return StoreUnsuitable(
            f"{where}: the store does not support this operation; use another store"
        )
    if isinstance(
        error, exceptions.InvalidPathError | exceptions.UnknownConfigurationKeyError | ValueError
    ):
        return InvalidInput(f"{where}: {headline(error)}")
    if "builder error" in text:
        return InvalidInput(
            f"{uri}: no request could be made for this endpoint; a plain http:// endpoint needs "
            "allow_http='true' in storage_options"
        )
    return _failed(text, status, where, write=write)


def _failed(text: str, status: int | None, where: str, *, write: bool) -> StoreError:
    """GenericError, JoinError, NotModifiedError and OSError, distinguished by their status."""
    # Azurite returns nothing for a range that begins at the very end, which obstore rejects.
    if status == 416 or "StartTooLarge" in text:
        return OutOfRange(f"{where}: no such range")
    code = _CODE.search(text)
    said = f"status {status}" if status else "no answer"
    what = f"{where}: the request failed with {said}" + (f" ({code.group(1)})" if code else "")
    # 3xx: redirected, as S3 does for a while with requests for a new bucket (307).
    refused = status is not None and 300 <= status < 500 and status != 408
    if write and not refused and not any(mark in text for mark in _NEVER_SENT):
        return LostAnswer(what + "; the write may still have been applied")
    return StoreError(what + "; the same call may work later")


def headline(error: Exception) -> str:
    """The first line of obstore's message, without query strings."""
    line = str(error).partition("\n")[0]
    return re.sub(r"\?\S*", "", line)[:200]
