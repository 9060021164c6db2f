"""Program of a local workshop's supervisor: puts sandbox and network together. Run by path, never imported.

Configuration comes over standard input (it holds a key). Ends with 0 once the detached supervisor can be asked.
"""

import ipaddress
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from atelier_dagster.network.egress import EgressProxy
from atelier_dagster.network.hosts import EgressPolicy
from atelier_dagster.network.log import DecisionLog
from atelier_dagster.network.model import Endpoint, ModelProxy
from atelier_dagster.sandbox import bubblewrap, supervisor
from atelier_dagster.sandbox.config import SupervisorConfig, UpstreamConfig
from atelier_dagster.sandbox.places import Places

BUSY = 75
"""Exit code: another supervisor owns the workshop already."""


def build(config: SupervisorConfig) -> supervisor.Supervisor:
    """A supervisor with its two ways out."""
    egress = config.egress
    networks = [ipaddress.ip_network(network) for network in egress.networks]
    proxy = EgressProxy(
        EgressPolicy(egress.hosts, egress.ports, networks),
        DecisionLog(Places(Path(config.directory)).egress_log),
        upstream=egress.upstream_proxy,
    )
    model = ModelProxy(upstream_proxy=egress.upstream_proxy)

    def set_upstream(upstream: UpstreamConfig) -> None:
        model.endpoint = Endpoint(upstream.base_url, upstream.api_key)

    return supervisor.Supervisor(config, proxy=proxy.serve, model=model.serve, set_upstream=set_upstream)


def supervise(config: SupervisorConfig) -> int:
    """Detach, and answer once the supervisor can be asked."""
    answer, answer_in = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(answer_in)
        code = os.read(answer, 1)
        return code[0] if code else 1

    def ready() -> None:
        os.write(answer_in, bytes([0]))
        os.close(answer_in)

    supervisor.detach(Places(Path(config.directory)).supervisor_log)
    try:
        supervisor.run(build(config), ready)
    except supervisor.AlreadyRunning:
        os.write(answer_in, bytes([BUSY]))
        return BUSY
    return 0


def probe(config: SupervisorConfig) -> int:
    """Make a sandbox in the given (scratch) directory and say on standard output what is wrong with it."""
    places = Places(Path(config.directory))
    places.prepare(config.uid, fresh=True)
    sandbox = bubblewrap.Sandbox(
        bwrap=config.bwrap, state=str(places.root), home=str(places.home_dir), workdir=str(places.workdir_dir),
        tmp=str(places.tmp_dir), python=config.python, uid=config.uid, mounts=config.mounts,
        ca_bundle=config.ca_bundle,
    )  # fmt: skip
    problem = bubblewrap.probe(sandbox)
    sys.stdout.write(problem)
    return 1 if problem else 0


def main() -> int:
    """Supervise, or probe."""
    os.umask(0o077)
    config = SupervisorConfig.load(sys.stdin.buffer.read())
    return probe(config) if sys.argv[1:] == ["probe"] else supervise(config)


if __name__ == "__main__":
    sys.exit(main())
