"""What the building steps share: the host's repository up to date with the forge, and how a workshop is specified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atelier_dagster.delivery import HostRepository
from atelier_dagster.factory.change import WorkshopRecord
from atelier_dagster.factory.plan import SubTask
from atelier_dagster.factory.ticket import TicketKey
from atelier_dagster.ports import Forge, GitRemote, RepoSource, Resources, Workshops, WorkshopSpec
from resources.forge import ForgeResource
from resources.repositories import RepositoriesResource
from resources.workshops import WorkshopsResource


@dataclass(frozen=True)
class Site:
    """A ticket's place of work. `tips` are the forge's branches as they are now (absent ones are left out)."""

    forge: Forge
    repository: HostRepository
    workshops: Workshops
    remote: GitRemote
    tips: Mapping[str, str]
    bounds: Resources
    egress: tuple[str, ...]


async def open_site(
    key: TicketKey,
    forge: ForgeResource,
    repositories: RepositoriesResource,
    workshops: WorkshopsResource,
    branches: Sequence[str],
) -> Site:
    """Bring the host's repository up to date with `branches` of the forge."""
    client, repository = forge.forge(), repositories.repository(key)
    remote = client.remote(key.repo)
    found = await repository.fetch(remote, [f"refs/heads/{branch}" for branch in branches]) if branches else {}
    tips = {ref.removeprefix("refs/heads/"): tip for ref, tip in found.items() if tip}
    return Site(
        forge=client,
        repository=repository,
        workshops=workshops.workshops(),
        remote=remote,
        tips=tips,
        bounds=workshops.bounds(),
        egress=tuple(workshops.egress),
    )


def workshop_spec(site: Site, key: TicketKey, campaign: str, record: WorkshopRecord) -> WorkshopSpec:
    """The workshop that a record asks for."""
    return WorkshopSpec(
        name=record.name,
        source=RepoSource(
            repository=site.repository.path, remote=site.remote, branch=record.branch, commit=record.start_commit
        ),
        campaign=campaign,
        ticket=key.partition,
        resources=site.bounds,
        egress=site.egress,
        model_access=True,
        devcontainer=record.devcontainer,
        allowed_targets=record.allowed_targets,
        exported_services=record.exported_services,
    )


def union_of_scopes(tasks: Sequence[SubTask]) -> tuple[str, ...]:
    """Every glob of every task, once."""
    return tuple(dict.fromkeys(glob for task in tasks for glob in task.scope))
