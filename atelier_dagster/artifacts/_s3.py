"""Objects in one S3 bucket. Belongs here: conditional writes and what S3 errors mean. Not here: making the client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from atelier_dagster.artifacts._keys import check_key, check_prefix
from atelier_dagster.factory.errors import AtelierError, NotFound, Refused, TimedOut, Unavailable
from atelier_dagster.ports import Check

R = TypeVar("R")

_PROBE = "preflight/probe"
_CONFLICT_ATTEMPTS = 5
_FULL = {"InsufficientStorage", "XMinioStorageFull", "QuotaExceeded", "507"}
_DENIED = {
    "403",
    "AccessDenied",
    "AllAccessDisabled",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
}


class S3Client(Protocol):
    """The part of a boto3 S3 client that is used."""

    def put_object(self, **kwargs: Any) -> Mapping[str, Any]:
        """PUT Object."""
        ...

    def get_object(self, **kwargs: Any) -> Mapping[str, Any]:
        """GET Object."""
        ...

    def head_object(self, **kwargs: Any) -> Mapping[str, Any]:
        """HEAD Object."""
        ...

    def head_bucket(self, **kwargs: Any) -> Mapping[str, Any]:
        """HEAD Bucket."""
        ...

    def list_objects_v2(self, **kwargs: Any) -> Mapping[str, Any]:
        """List one page of objects."""
        ...


class S3Store:
    """An `ObjectStore` in a bucket that exists, on a server with conditional writes (`If-None-Match: *`).

    Objects are only ever created, never replaced or deleted, so object lock and versioning may be on. boto3 blocks,
    so calls run in threads; its clients may be shared by them. `timeout` bounds each call, in seconds.
    """

    def __init__(self, client: S3Client | Callable[[], S3Client], bucket: str, prefix: str = "", timeout: float = 120):
        self._source = client
        self._client: S3Client | None = None
        self._bucket = bucket
        self._prefix = "".join(f"{part}/" for part in check_prefix(prefix))
        self._timeout = timeout
        self._proven = False

    def __repr__(self) -> str:
        return f"S3Store(bucket={self._bucket!r}, prefix={self._prefix!r})"

    async def put_if_absent(self, key: str, data: bytes, media_type: str = "application/octet-stream") -> bool:
        """See `ObjectStore`. Raises `Refused` rather than write to a server that would overwrite."""
        check_key(key)
        await self._prove_conditional_writes()
        return await self._put(key, data, media_type)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        check_key(key)
        return await self._call(key, lambda client: client.get_object(**self._at(key))["Body"].read())

    async def exists(self, key: str) -> bool:
        """See `ObjectStore`. A missing bucket is `Refused`: it says nothing about the object."""
        check_key(key)
        try:
            await self._call(key, lambda client: client.head_object(**self._at(key)))
        except NotFound:
            # a HEAD's 404 has no body to tell a missing key from a missing bucket
            await self._head_bucket()
            return False
        return True

    async def list(self, prefix: str) -> Sequence[str]:
        """Keys in the folder `prefix` and below it, sorted."""
        folder = self._prefix + "".join(f"{part}/" for part in check_prefix(prefix))
        found: _Keys = []
        token: dict[str, str] = {}
        while True:
            page = await self._call(prefix, _lister(self._bucket, folder, token))
            found += [item["Key"].removeprefix(self._prefix) for item in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return sorted(key for key in found if not key.endswith("/"))
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def preflight(self) -> Sequence[Check]:
        """Write a small object conditionally, twice, and read it back."""
        name = "artifacts: S3"
        try:
            await self._head_bucket()
            self._proven = False
            await self._prove_conditional_writes()
            await self.get(_PROBE)
        except AtelierError as error:
            return [Check(name, ok=False, detail=error.message, fix=error.fix)]
        return [Check(name, ok=True, detail=f"bucket {self._bucket} can be written once and read")]

    # ------------------------------------------------------------------------------------------------ requests

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    async def _put(self, key: str, data: bytes, media_type: str) -> bool:
        # buckets with object lock demand a digest, which is Content-MD5 on every server
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        wanted = {"Body": data, "ContentType": media_type, "ContentMD5": digest, "IfNoneMatch": "*", **self._at(key)}
        for _ in range(_CONFLICT_ATTEMPTS):
            try:
                await self._call(key, lambda client: client.put_object(**wanted))
            except _Exists:
                return False
            except _Conflict:
                continue
            return True
        raise Unavailable(f"other writers kept interfering with {key!r}", fix="run the step again")

    async def _prove_conditional_writes(self) -> None:
        """Write a probe that exists from the first time on: a server that accepts it twice ignores the condition."""
        if self._proven:
            return
        written = await self._put(_PROBE, b"probe", "text/plain")
        if written and await self._put(_PROBE, b"probe", "text/plain"):
            raise Refused(
                f"the S3 server of bucket {self._bucket} ignores `If-None-Match: *`: evidence could be overwritten",
                fix="use a server with conditional writes, or keep artifacts in a directory",
                code="STORE_OVERWRITES",
            )
        self._proven = True

    async def _head_bucket(self) -> None:
        try:
            await self._call("", lambda client: client.head_bucket(Bucket=self._bucket))
        except NotFound as error:
            raise _no_bucket(self._bucket) from error

    async def _call(self, key: str, request: Callable[[S3Client], R]) -> R:
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.to_thread(self._run, key, request)
        except TimeoutError as error:
            raise TimedOut(f"the S3 server did not finish with {key!r} within {self._timeout:g} s") from error

    def _run(self, key: str, request: Callable[[S3Client], R]) -> R:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if self._client is None:
                self._client = self._source() if callable(self._source) else self._source
            return request(self._client)
        except ClientError as error:
            response: Mapping[str, Any] = error.response
            raise _typed(response, self._bucket, key) from error
        except BotoCoreError as error:
            raise _unreachable(error, self._bucket) from error


_Keys = list[str]
"""`list` inside the class is its method."""


class _Exists(AtelierError):
    """The condition of a PUT failed: somebody wrote the object before."""


class _Conflict(AtelierError):
    """Two conditional PUTs met; neither is known to have won."""


def _lister(bucket: str, folder: str, token: dict[str, str]) -> Callable[[S3Client], Mapping[str, Any]]:
    return lambda client: client.list_objects_v2(Bucket=bucket, Prefix=folder, **token)


def _no_bucket(bucket: str) -> AtelierError:
    return Refused(f"there is no bucket {bucket!r}", fix="create it, or correct the bucket's name", code="NO_BUCKET")


def _unreachable(error: Exception, bucket: str) -> AtelierError:
    from botocore.exceptions import NoCredentialsError, ParamValidationError, PartialCredentialsError

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Refused("there are no S3 credentials", fix="give the artifacts resource an access key and its secret")
    if isinstance(error, ParamValidationError):
        return Refused(f"the S3 settings of bucket {bucket!r} are not valid: {error}", fix="correct bucket and prefix")
    return Unavailable(f"the S3 server of bucket {bucket!r} did not answer: {error}", fix="check endpoint and network")


def _typed(response: Mapping[str, Any], bucket: str, key: str) -> AtelierError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "PreconditionFailed" or status == 412:
        return _Exists(key)
    if code == "NoSuchBucket":
        return _no_bucket(bucket)
    if code == "NoSuchKey" or status == 404:
        return NotFound(f"there is no object {key!r}", fix="materialize the asset that writes it")
    if code in {"ConditionalRequestConflict", "OperationAborted"} or status == 409:
        return _Conflict(key)
    if code in _FULL or status == 507:
        return Unavailable(
            f"the artifact store is full: {key!r} was not written",
            fix="free space or raise the quota, then run the step again",
            code="DISK_FULL",
            transient=False,
        )
    if code in _DENIED or status in {401, 403}:
        return Refused(
            f"the S3 server refuses access to bucket {bucket!r} ({code or status})",
            fix="check access key, secret, and the bucket's policy",
        )
    if code == "NotImplemented" or status in {400, 405, 501}:
        return Refused(
            f"the S3 server refuses {key!r} ({code or status}); conditional writes must be supported",
            fix="use a server with conditional writes, or keep artifacts in a directory",
        )
    return Unavailable(f"the S3 server failed on {key!r} ({code or status})", fix="check the S3 server, then try again")
