"""The closed list of reasons that conditions may give. Knows nothing of how each is found out."""

from enum import StrEnum


class Reason(StrEnum):
    """One word for each cause; the sentence beside it names the pod and the details."""

    # All is well.
    ACCEPTED = "Accepted"
    ALL_REPLICAS_READY = "AllReplicasReady"
    REPLICAS_AVAILABLE = "ReplicasAvailable"
    ROLLOUT_COMPLETE = "RolloutComplete"
    AS_EXPECTED = "AsExpected"

    # On the way, or wanted so.
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    DRAINING = "Draining"
    SCALED_TO_ZERO = "ScaledToZero"
    PREDECESSOR_TERMINATING = "PredecessorTerminating"

    # The spec cannot be carried out.
    INVALID_SPEC = "InvalidSpec"
    INVALID_MODEL_URI = "InvalidModelUri"
    NAME_TAKEN = "NameTaken"
    APPLY_REJECTED = "ApplyRejected"

    # Pods are not made, placed or started.
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_CREATION_FAILED = "PodCreationFailed"
    UNSCHEDULABLE = "Unschedulable"
    ROLLOUT_BLOCKED_NO_SPARE_GPU = "RolloutBlockedNoSpareGPU"
    IMAGE_PULL = "ImagePull"
    CONTAINER_CANNOT_START = "ContainerCannotStart"
    SECRET_MISSING = "SecretMissing"
    VOLUME_MOUNT = "VolumeMount"

    # The model's files.
    MODEL_READY = "ModelReady"
    MODEL_PENDING = "ModelPending"
    MODEL_NOT_FOUND = "ModelNotFound"
    DOWNLOAD_FAILED = "DownloadFailed"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    DOES_NOT_FIT = "DoesNotFit"

    # The engine ended and said why.
    MODEL_UNREADABLE = "ModelUnreadable"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    OUT_OF_MEMORY = "OutOfMemory"
    GPU_FAULT = "GPUFault"
    ENGINE_STALLED = "EngineStalled"
    ENGINE_FAILED = "EngineFailed"

    # The engine ended without words, or the pod was taken away.
    OOM_KILLED = "OOMKilled"
    CRASH_LOOP = "CrashLoop"
    POD_FAILED = "PodFailed"

    # Too few replicas answer, or the time is up.
    NOT_ANSWERING = "NotAnswering"
    MINIMUM_REPLICAS_UNAVAILABLE = "MinimumReplicasUnavailable"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    TERMINATION_OVERDUE = "TerminationOverdue"
