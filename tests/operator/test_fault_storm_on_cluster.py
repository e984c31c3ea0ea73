"""Fifty services come, change and go while the API server answers wrongly, late or not at all.

OCTAVO_FAULT_STORM_S sets how long (`make fault-storm` takes five minutes); _SEED the faults.
"""

import base64
import os
import random
import time
from dataclasses import dataclass, field

import pytest
import yaml
from tests.operator.cluster_operator import service
from tests.operator.fault_proxy import FaultProxy, Faults

from octavo_operator.kinds import (
    CHILD_KINDS,
    CONFIG_MAP,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE_LABEL,
    STATEFUL_SET,
)

pytestmark = pytest.mark.cluster

NUM_SERVICES = 50
NOT_MADE = {PERSISTENT_VOLUME_CLAIM, CONFIG_MAP, STATEFUL_SET}
"""Children only of services that keep a model in a claim, or have a chat template."""
STORM_S = float(os.environ.get("OCTAVO_FAULT_STORM_S", "20"))
SEED = int(os.environ.get("OCTAVO_FAULT_STORM_SEED", "1"))


@pytest.fixture
def proxy(api_server):
    config = yaml.safe_load(api_server.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(config["certificate-authority-data"]).decode()
    made = FaultProxy(config["server"], authority, SEED)
    yield made
    made.remove()


@dataclass
class Wishes:
    """What there shall be at the end: name of a service -> (replicas, maxNumSeqs)."""

    draw: random.Random
    wanted: dict[str, tuple[int, int]] = field(default_factory=dict)
    num_changes: int = 0

    def change_some(self, kubectl):
        names = [f"chat-{idx}" for idx in range(NUM_SERVICES)]
        gone = [name for name in self.draw.sample(names, 4) if name in self.wanted]
        if gone:
            kubectl("delete", "osvc", *gone, "--wait=false")
            for name in gone:
                del self.wanted[name]
        for name in self.draw.sample(names, 12):
            self.wanted[name] = (self.draw.randint(0, 2), self.draw.randint(1, 64))
            self.num_changes += 1
        self.num_changes += len(gone)
        self.apply(kubectl)

    def fill(self, kubectl):
        for idx in range(NUM_SERVICES):
            self.wanted.setdefault(f"chat-{idx}", (1, 8))
        self.apply(kubectl)

    def apply(self, kubectl):
        kubectl.apply(
            *(
                service(name, replicas=replicas, engine={"maxNumSeqs": max_num_seqs})
                for name, (replicas, max_num_seqs) in self.wanted.items()
            )
        )


def test_faults_of_the_api_server_change_no_outcome(proxy, start_operator, kubectl):
    operator = start_operator(through=proxy.url)
    wishes = Wishes(random.Random(SEED))
    wishes.fill(kubectl)
    proxy.disturb(Faults())
    end_s = time.monotonic() + STORM_S
    while time.monotonic() < end_s:
        wishes.change_some(kubectl)
    proxy.calm()

    wait_until_as_wished(kubectl, wishes.wanted)
    backed_off = operator.samples("octavo_operator_backoff_seconds_count")[()]
    failed = operator.samples("octavo_operator_reconcile_duration_seconds_count")
    codes = codes_of(operator)
    assert {"0", "409", "429", "500"} <= set(codes), codes
    assert backed_off == failed[(("outcome", "failed"),)] > 0
    assert proxy.counts["watch"] > 0
    print(f"{wishes.num_changes} changes in {STORM_S:.0f} s, faults {dict(proxy.counts)}")
    print(f"calls by code {codes}; {backed_off:.0f} reconciles failed and were tried again later")


def wait_until_as_wished(kubectl, wanted, timeout_s=300):
    deadline_s = time.monotonic() + timeout_s
    while wrong := differences(kubectl, wanted):
        if time.monotonic() > deadline_s:
            raise AssertionError("not as wished:\n" + "\n".join(wrong))
        time.sleep(1)


def codes_of(operator):
    codes = {}
    for labels, value in operator.samples("octavo_operator_api_calls_total").items():
        code = dict(labels)["code"]
        codes[code] = codes.get(code, 0) + value
    return codes


def differences(kubectl, wanted):
    """What is not as wished, in sentences: wrong, missing, left over or doubled objects."""
    services = {item["metadata"]["name"]: item for item in kubectl.get("osvc")["items"]}
    wrong = (
        [f"services {sorted(set(services) ^ set(wanted))}"] if set(services) ^ set(wanted) else []
    )
    for kind in CHILD_KINDS:
        selector = f"--selector={SERVICE_LABEL}"
        items = kubectl.get(f"{kind.plural}.{kind.group_version[0]}".rstrip("."), selector)["items"]
        owners = sorted(item["metadata"]["ownerReferences"][0]["uid"] for item in items)
        made = sorted(item["metadata"]["uid"] for item in services.values())
        if owners != ([] if kind in NOT_MADE else made):
            wrong.append(f"{len(items)} {kind.plural} have other owners than the services")
        if kind.name == "Deployment":
            wrong += [sentence for item in items if (sentence := unlike(item, wanted))]
    for name, item in services.items():
        if item.get("status", {}).get("observedGeneration") != item["metadata"]["generation"]:
            wrong.append(f"the status of {name} tells of another generation")
    return wrong


def unlike(deployment, wanted):
    name = deployment["metadata"]["name"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    replicas, max_num_seqs = wanted.get(name, (None, None))
    if deployment["spec"]["replicas"] != replicas:
        return f"{name} has {deployment['spec']['replicas']} replicas, not {replicas}"
    if f"--max-num-seqs={max_num_seqs}" not in arguments:
        return f"{name} runs with {arguments}, not with {max_num_seqs} sequences"
    return None
