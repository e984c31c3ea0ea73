"""The operator's only way to write to the API server, and its few direct reads.

Objects are plain dicts; every error comes out as one of errors.ApiError. Knows nothing of services.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from kubernetes.aio.client import ApiClient

from octavo_operator.errors import ApiError, ApiRejected, ApiUnavailable
from octavo_operator.kinds import FIELD_MANAGER, POD, Kind, Manifest, kind_of
from octavo_operator.metrics import Metrics

_REQUEST_TIMEOUT_S = 30
_TEMPORARY = frozenset({409, 429})
_PAGE_SIZE = 500


@dataclass(frozen=True)
class Listing:
    items: tuple[Manifest, ...]
    resource_version: str


class Cluster:
    def __init__(self, client: ApiClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply under the one field manager; the object as it is afterwards.

        Forced: a field of ours that somebody else wrote becomes ours again.
        """
        metadata = manifest["metadata"]
        kind = kind_of(manifest)
        return await self._call(
            "PATCH",
            kind,
            kind.path(metadata["namespace"], metadata["name"]),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            content_type="application/apply-patch+yaml",
            body=manifest,
        )

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, patch: Manifest
    ) -> Manifest:
        return await self._call(
            "PATCH",
            kind,
            kind.path(namespace, name) + "/status",
            query={"fieldManager": FIELD_MANAGER},
            content_type="application/merge-patch+json",
            body=patch,
        )

    async def patch(
        self, kind: Kind, namespace: str, name: str, patch: Manifest
    ) -> Manifest | None:
        """A merge patch; None when there is no such object."""
        try:
            return await self._call(
                "PATCH",
                kind,
                kind.path(namespace, name),
                query={"fieldManager": FIELD_MANAGER},
                content_type="application/merge-patch+json",
                body=patch,
            )
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """None when there is no such object."""
        try:
            return await self._call("GET", kind, kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing:
        """All objects of the kind, read page by page; those of every namespace when it is None."""
        items: list[Manifest] = []
        query = {"limit": str(_PAGE_SIZE)}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        while True:
            page = await self._call("GET", kind, kind.path(namespace), query=query, verb="LIST")
            # Items of a list come without apiVersion and kind.
            own = {"apiVersion": kind.api_version, "kind": kind.name}
            items += [{**own, **item} for item in page["items"]]
            following = page["metadata"].get("continue")
            if not following:
                return Listing(tuple(items), page["metadata"]["resourceVersion"])
            query["continue"] = following

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server knows the kind, in this version."""
        try:
            found = await self._call("GET", kind, kind.group_path, verb="DISCOVER")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(one["name"] == kind.plural for one in found["resources"])

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """That very object; nothing where it has gone already."""
        try:
            await self._call(
                "DELETE",
                kind,
                kind.path(namespace, name),
                body={"preconditions": {"uid": uid}, "propagationPolicy": "Background"},
            )
        except ApiError as error:
            if error.status != 404:
                raise

    async def evict(self, namespace: str, name: str, uid: str) -> bool:
        """As a drain does, within the pod's budgets; False where that very pod has gone already."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = POD.path(namespace, name) + "/eviction"
        try:
            await self._call("POST", POD, path, body=eviction, verb="EVICT")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        return await self._call(
            "POST", kind, kind.path(manifest["metadata"]["namespace"]), body=manifest
        )

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Refused with 409 when the object has changed since it was read."""
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self._call("PUT", kind, path, body=manifest)

    async def _call(
        self,
        method: str,
        kind: Kind,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        body: Manifest | None = None,
        verb: str | None = None,
    ) -> Manifest:
        call = f"{verb or method} {path}"
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        status = 0
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*request, _request_timeout=_REQUEST_TIMEOUT_S)
            status = answer.status
            text: bytes = await answer.response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiUnavailable(call, 0, f"no answer: {error or type(error).__name__}") from error
        finally:
            self._metrics.api_calls.labels(verb or method, kind.plural, str(status)).inc()
        if status >= 300:
            raise _error(call, status, text, answer.headers.get("Retry-After"))
        parsed: Manifest = json.loads(text)
        return parsed


def _error(call: str, status: int, text: bytes, retry_after: str | None) -> ApiError:
    message = _message(text)
    # 401: the token is rotated under us; the next call reads the new one.
    if status in _TEMPORARY or status == 401 or status >= 500:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return ApiUnavailable(call, status, message, seconds)
    return ApiRejected(call, status, message)


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")[:300]
