"""A running hash of the plans of all steps: equal on two ranks just when both got the same ones."""

from hashlib import blake2b

DIGEST_BYTES = 8


class PlanChain:
    def __init__(self) -> None:
        self._digest = b""

    def add(self, plan: bytes) -> bytes:
        """The hash of all plans up to this one, in their order."""
        self._digest = blake2b(plan, key=self._digest, digest_size=DIGEST_BYTES).digest()
        return self._digest
