"""The pod template that a workload has, kept while nobody asks for another one. Pure.

Another release of the operator may make other pods of the same wishes. That alone restarts no pod:
the template that was applied is kept on the workload, beside a digest of what it was made of, and a
new one is made once a service's spec or the installation's engine settings ask for other pods.
"""

import json
from typing import Any

from octavo_operator.api import InferenceService, RolloutSpec, Spec
from octavo_operator.child import digest
from octavo_operator.config import EngineDefaults
from octavo_operator.kinds import TEMPLATE_ANNOTATION, Manifest

_MAX_BYTES = 200_000
"""An object's annotations may take 262,144 bytes together."""


def asked(service: InferenceService, defaults: EngineDefaults) -> str:
    """Digest of all that a pod is made of.

    Without what has its default: a field that a later release adds changes nothing by itself.
    """
    parts = (_of_pods(service.spec), defaults)
    return digest([part.model_dump(mode="json", exclude_defaults=True) for part in parts])


def kept(workload: Manifest | None, asked: str) -> Manifest | None:
    """The template of before; None where there is none, or where other pods are asked for."""
    if workload is None:
        return None
    text = workload["metadata"].get("annotations", {}).get(TEMPLATE_ANNOTATION)
    record = None if text is None else _read(text)
    if record is None or record.get("asked") != asked:
        return None
    template: Manifest = record["template"]
    # A text that somebody has changed is no template of ours.
    return template if record.get("digest") == digest(template) else None


def annotation(template: Manifest, asked: str) -> dict[str, str]:
    """Empty for a template that is too large to be kept: it is made anew each time."""
    record = {"asked": asked, "digest": digest(template), "template": template}
    text = json.dumps(record, separators=(",", ":"))
    return {TEMPLATE_ANNOTATION: text} if len(text.encode()) <= _MAX_BYTES else {}


def _of_pods(spec: Spec) -> Spec:
    """Without what no pod depends on."""
    steps = RolloutSpec()
    rollout = {"strategy": steps.strategy, "max_surge": steps.max_surge}
    bare = Spec(model=spec.model)
    return spec.model_copy(
        update={
            "replicas": bare.replicas,
            "autoscaling": bare.autoscaling,
            "network": bare.network,
            "rollout": spec.rollout.model_copy(update=rollout),
        }
    )


def _read(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except ValueError:
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("template"), dict)
    return record if is_record else None
