"""The kinds that this cluster serves, and errors as a Kubernetes Status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ropeteam.local.fielderrors import FieldError
from ropeteam_trainer.contract.errors import RopeteamError

Object = dict[str, Any]


class StatusError(RopeteamError):
    """An answer of the API server that is not a success. `message` is for the user, `details` for clients."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> Object:
        """The error as an object of kind Status, with the fields that a real server sets for its code."""
        details = {name: value for name, value in self.details.items() if value}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.code != 500 else {}),
            **({"details": details} if details or self.code in (404, 405, 422) else {}),
            "code": self.code,
        }


class Undecodable(StatusError):
    """400: the body of the request cannot be decoded into its kind."""


def invalid_error(kind: str, group: str, name: str, errors: Iterable[FieldError]) -> StatusError:
    """422 with each of `errors` once, one or more, in its message and its causes."""
    errors = list(dict.fromkeys(errors))
    text = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
    message = f'{kind}{group and f".{group}"} "{name}" is invalid: {text}'
    causes = [error.cause for error in errors]
    return StatusError(422, "Invalid", message, name=name, group=group, kind=kind, causes=causes)


def path_not_found_error() -> StatusError:
    """404: nothing is served at this path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


@dataclass(frozen=True)
class Resource:
    """One kind and how it is served. `schema`: set for custom resources only, which differ from built-in
    kinds in many answers."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = False
    """Status is a subresource: a write to the object does not change it, and the reverse."""
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    schema: Object | None = field(default=None, hash=False)
    columns: tuple[Object, ...] = field(default=(), hash=False)

    @property
    def name(self) -> str:
        """Plural and group, as in messages of a server and names of CRDs: `pods`,
        `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_kind(self) -> str:
        """Kind and group: `Pod`, `Lease.coordination.k8s.io`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def not_found_error(self, name: str) -> StatusError:
        """404: no object of this name."""
        message = f'{self.name} "{name}" not found'
        return StatusError(404, "NotFound", message, name=name, group=self.group, kind=self.plural)

    def conflict_error(self, name: str, why: str) -> StatusError:
        """409: the stored object is not the one that the client expects."""
        message = f'Operation cannot be fulfilled on {self.name} "{name}": {why}'
        return StatusError(409, "Conflict", message, name=name, group=self.group, kind=self.plural)

    def invalid_error(self, name: str, errors: Iterable[FieldError]) -> StatusError:
        """422: an object with these errors."""
        return invalid_error(self.kind, self.group, name, errors)

    def undecodable_error(self, why: str) -> Undecodable:
        """400: a body that cannot be decoded into this kind."""
        message = f'{self.kind} in version "{self.version}" cannot be handled as a {self.kind}: {why}'
        return Undecodable(400, "BadRequest", message)


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, has_status=True, short=("ns",))
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, has_status=True, short=("no",))
PODS = Resource("", "v1", "pods", "Pod", has_status=True, short=("po",), categories=("all",))
SERVICES = Resource("", "v1", "services", "Service", has_status=True, short=("svc",), categories=("all",))
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", short=("cm",))
CLAIMS = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", has_status=True, short=("pvc",)
)
EVENTS = Resource("", "v1", "events", "Event", short=("ev",))
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    has_status=True,
    short=("crd", "crds"),
    categories=("api-extensions",),
)
BUILT_IN = (NAMESPACES, NODES, PODS, SERVICES, SECRETS, CONFIG_MAPS, CLAIMS, EVENTS, LEASES, CRDS)


class Catalog:
    """Every resource served now: the built-in ones, and those of the stored CustomResourceDefinitions."""

    def __init__(self) -> None:
        self._all = {resource.name: resource for resource in BUILT_IN}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._all.values())

    def find(self, group: str, version: str, plural: str) -> Resource:
        """Raises 404 for a resource that is not served."""
        found = self._all.get(f"{plural}.{group}" if group else plural)
        if found is None or found.version != version:
            raise path_not_found_error()
        return found

    def define(self, crd: Object) -> None:
        """Serve the resource of a CustomResourceDefinition, or its new definition."""
        resource = from_crd(crd)
        self._all[resource.name] = resource

    def forget(self, crd: Object) -> None:
        """Serve the resource of a CustomResourceDefinition no longer."""
        self._all.pop(from_crd(crd).name, None)


def from_crd(crd: Object) -> Resource:
    """The resource that a CustomResourceDefinition describes, in its storage version."""
    spec = crd["spec"]
    version = next(v for v in spec["versions"] if v.get("storage"))
    names = spec["names"]
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        has_status="status" in version.get("subresources", {}),
        short=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        schema=version.get("schema", {}).get("openAPIV3Schema"),
        columns=tuple(version.get("additionalPrinterColumns", ())),
    )
