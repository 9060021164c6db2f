"""The S3 store on a real server: conditional writes, refused credentials, missing buckets, servers that overwrite."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Generator
from typing import Any

import pytest

from atelier_dagster.artifacts import ArtifactStore, S3Store
from atelier_dagster.factory.errors import AtelierError, InvalidInput, NotFound, Refused, TimedOut, Unavailable
from atelier_dagster.factory.lineage import Artifact
from atelier_dagster.ports import ObjectStore
from tests.support.seaweed import S3Server, seaweed


@pytest.fixture(scope="session")
def server() -> Generator[S3Server]:
    with seaweed() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> str:
    name = f"tests-{uuid.uuid4().hex[:12]}"
    server.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def store(server: S3Server, bucket: str) -> S3Store:
    return S3Store(server.client(), bucket, prefix="team/atelier/")


@pytest.mark.service
async def test_what_was_put_is_read_back_and_never_replaced(store: S3Store, server: S3Server, bucket: str) -> None:
    assert isinstance(store, ObjectStore)
    assert await store.put_if_absent("a/b~c/d.json", b"first", "application/json")
    assert not await store.put_if_absent("a/b~c/d.json", b"second")
    assert await store.get("a/b~c/d.json") == b"first"
    assert await store.exists("a/b~c/d.json")
    stored = server.client().get_object(Bucket=bucket, Key="team/atelier/a/b~c/d.json")
    assert stored["ContentType"] == "application/json"


@pytest.mark.service
async def test_of_many_writers_exactly_one_wins(server: S3Server, bucket: str) -> None:
    stores = [S3Store(server.client, bucket) for _ in range(4)]
    bodies = [f"writer {number}".encode() * 100 for number in range(24)]
    won = await asyncio.gather(*(stores[n % 4].put_if_absent("race/one", body) for n, body in enumerate(bodies)))
    assert won.count(True) == 1
    assert await stores[0].get("race/one") == bodies[won.index(True)]


@pytest.mark.service
def test_one_store_serves_event_loops_one_after_the_other(server: S3Server, bucket: str) -> None:
    store = S3Store(server.client, bucket)

    async def write(name: str) -> int:
        keys = [f"{name}/{number}" for number in range(8)]
        return sum(await asyncio.gather(*(store.put_if_absent(key, b"x") for key in keys)))

    assert [asyncio.run(write(name)) for name in ("first", "second")] == [8, 8]


@pytest.mark.service
async def test_a_list_is_one_folder_and_below_over_all_pages(server: S3Server, bucket: str) -> None:
    client = server.client()
    store = S3Store(client, bucket, prefix="p")
    wanted = [f"l/t~1/{number:04}" for number in range(1005)]
    await asyncio.gather(*(asyncio.to_thread(client.put_object, Bucket=bucket, Key=f"p/{key}") for key in wanted))
    await store.put_if_absent("l/t~10/1", b"")
    assert list(await store.list("l/t~1")) == wanted
    assert list(await store.list("l/t~1/")) == wanted
    assert list(await store.list("nothing")) == []


@pytest.mark.service
async def test_missing_objects_are_not_found_and_do_not_exist(store: S3Store) -> None:
    assert not await store.exists("nothing/here")
    with pytest.raises(NotFound):
        await store.get("nothing/here")


@pytest.mark.service
async def test_a_wrong_secret_is_refused_everywhere(server: S3Server, bucket: str) -> None:
    store = S3Store(server.client(secret_key="wrong"), bucket)
    for call in (store.put_if_absent("a", b"x"), store.get("a"), store.exists("a"), store.list("")):
        with pytest.raises(Refused) as caught:
            await call
        assert "secret" in caught.value.fix
        assert "wrong" not in str(caught.value)
    (check,) = await store.preflight()
    assert not check.ok


@pytest.mark.service
async def test_a_missing_bucket_is_never_an_absent_object(server: S3Server) -> None:
    store = S3Store(server.client(), "no-such-bucket")
    for call in (store.get("a"), store.exists("a"), store.list("")):
        with pytest.raises(AtelierError) as caught:
            await call
        assert caught.value.code == "NO_BUCKET"
    (check,) = await store.preflight()
    assert not check.ok
    assert "no-such-bucket" in check.detail


@pytest.mark.service
async def test_a_versioned_bucket_gets_one_version_only(server: S3Server, bucket: str) -> None:
    client = server.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store = S3Store(client, bucket)
    assert [await store.put_if_absent("a/b", body) for body in (b"1", b"2")] == [True, False]
    assert len(client.list_object_versions(Bucket=bucket, Prefix="a/b")["Versions"]) == 1


@pytest.mark.service
async def test_a_locked_bucket_keeps_its_objects(server: S3Server) -> None:
    client = server.client()
    bucket = f"locked-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    store = S3Store(client, bucket)
    assert [await store.put_if_absent("a/b", body) for body in (b"1", b"2")] == [True, False]
    assert await store.get("a/b") == b"1"
    (check,) = await store.preflight()
    assert check.ok


@pytest.mark.service
async def test_preflight_can_be_repeated(store: S3Store) -> None:
    for _ in range(2):
        (check,) = await store.preflight()
        assert check.ok, check.detail


@pytest.mark.service
async def test_artifacts_live_on_it(store: S3Store, analysis: Artifact[Any]) -> None:
    sha256 = await ArtifactStore(store).put(analysis)
    assert await ArtifactStore(store).get(analysis.ticket, "analysis", sha256) == analysis
    ref = await ArtifactStore(store).put_object(b"x" * 3_000_000)
    assert await ArtifactStore(store).get_object(ref) == b"x" * 3_000_000


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = S3Store(S3Server("http://127.0.0.1:9").client(), "bucket")
    with pytest.raises(Unavailable) as caught:
        await store.get("a")
    assert caught.value.transient


async def test_hostile_keys_never_reach_the_client() -> None:
    store = S3Store(_Scripted([]), "bucket")
    for key in ("../a", "/a", "a//b", "a\nb", ""):
        with pytest.raises(InvalidInput):
            await store.put_if_absent(key, b"")
        with pytest.raises(InvalidInput):
            await store.get(key)
    with pytest.raises(InvalidInput):
        S3Store(_Scripted([]), "bucket", prefix="../up")


class _Scripted:
    """A client whose PUTs answer from a script: "" is success, anything else an S3 error code."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []

    def put_object(self, **kwargs: Any) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        self.requests.append(kwargs)
        code = self.answers.pop(0)
        if code:
            raise ClientError({"Error": {"Code": code, "Message": ""}}, "PutObject")
        return {}

    get_object = head_object = head_bucket = list_objects_v2 = put_object


PROVEN = "PreconditionFailed"


@pytest.mark.parametrize("answers", [["", ""], ["NotImplemented"], ["InvalidArgument"], ["AccessDenied"]])
async def test_a_server_without_conditional_writes_is_refused_before_anything_is_written(answers: list[str]) -> None:
    client = _Scripted(answers)
    with pytest.raises(AtelierError) as caught:
        await S3Store(client, "bucket").put_if_absent("a/b", b"x")
    assert {request["Key"] for request in client.requests} == {"preflight/probe"}
    assert all(request["IfNoneMatch"] == "*" for request in client.requests)
    assert caught.value.fix


async def test_conflicting_writers_are_asked_again_for_a_while() -> None:
    assert await S3Store(_Scripted([PROVEN, "ConditionalRequestConflict", ""]), "bucket").put_if_absent("a", b"")
    assert not await S3Store(_Scripted([PROVEN, "ConditionalRequestConflict", PROVEN]), "b").put_if_absent("a", b"")
    with pytest.raises(Unavailable):
        await S3Store(_Scripted([PROVEN, *["ConditionalRequestConflict"] * 9]), "bucket").put_if_absent("a", b"")


@pytest.mark.parametrize(
    ("answer", "code"),
    [("InsufficientStorage", "DISK_FULL"), ("XMinioStorageFull", "DISK_FULL"), ("InternalError", "UNAVAILABLE")],
)
async def test_a_full_server_says_so(answer: str, code: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await S3Store(_Scripted([PROVEN, answer]), "bucket").put_if_absent("a", b"")
    assert caught.value.code == code


async def test_every_call_has_a_limit() -> None:
    import threading

    release = threading.Event()

    class Silent(_Scripted):
        def put_object(self, **kwargs: Any) -> dict[str, Any]:
            release.wait(10)
            return {}

    try:
        with pytest.raises(TimedOut):
            await S3Store(Silent([]), "bucket", timeout=0.05).put_if_absent("a", b"")
    finally:
        release.set()
