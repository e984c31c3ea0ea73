"""The chart's Role against the calls that the operator makes."""

import pytest
from tests.operator.cluster_operator import (
    make_ready,
    roles,
)

from octavo_operator.kinds import WATCHED_KINDS

pytestmark = pytest.mark.cluster


def test_the_role_is_what_is_used_and_no_more(operator, kubectl, api_server):
    make_ready(kubectl)
    kubectl("delete", "service", "chat")
    kubectl.wait_until("back", lambda: kubectl.tried("get", "service", "chat").returncode == 0)

    renewal = (("code", "200"), ("resource", "leases"), ("verb", "PUT"))
    calls = "octavo_operator_api_calls_total"
    kubectl.wait_until("the Lease renewed", lambda: renewal in operator.samples(calls))

    used = {(kind.plural, "watch") for kind in WATCHED_KINDS}
    for labels in operator.samples(calls):
        call = dict(labels)
        used |= {(call["resource"], verb) for verb in VERBS[call["verb"]]}
    # A status is patched, never the service; and the right to set blockOwnerDeletion is no call.
    used.remove(("inferenceservices", "patch"))
    used.remove(("inferenceservices", "create"))
    used |= {("inferenceservices/status", "patch"), ("inferenceservices/finalizers", "update")}

    granted = {
        (resource, verb)
        for role in roles(api_server, kubectl.namespace)
        for rule in role.get("rules", [])
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert used == granted


VERBS = {
    "GET": ["get"],
    "LIST": ["list"],
    "PATCH": ["patch", "create"],
    "POST": ["create"],
    "PUT": ["update"],
}
"""Method -> verbs; a server-side apply asks for both, since it may create."""
