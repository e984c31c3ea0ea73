"""The hash chain that names a page by its content and by everything before it.

Digest i covers the salt and tokens [0, (i + 1) * block_size): equal digests mean equal prefixes of
the same tenant. Pure functions; knows no pages.
"""

from array import array
from hashlib import sha256


def root_digest(
    salt: str | None, adapter: str | None = None, rotated_len: int | None = None
) -> bytes:
    """Where a chain begins. Two tenants' chains, or two adapters', never meet.

    `rotated_len`: the prompt's length where its pages depend on that too.
    """
    # Lengths go in front of the texts, so that no two pairs of texts look alike when joined.
    parts = [b"octavo"]
    for text in (salt, adapter):
        data = b"" if text is None else text.encode("utf-8", "surrogatepass")
        parts.append(b"-" if text is None else len(data).to_bytes(8, "little") + data)
    if rotated_len is not None:
        parts.append(rotated_len.to_bytes(8, "little"))
    return sha256(b"|".join(parts)).digest()


def extend_chain(
    chain: list[bytes], root: bytes, token_ids: list[int], block_size: int, num_blocks: int
) -> None:
    """Appends to `chain` in place until it names `num_blocks` pages; their tokens must be known."""
    if num_blocks * block_size > len(token_ids):
        raise ValueError(f"{num_blocks} pages of {block_size} from {len(token_ids)} known tokens")
    digest = chain[-1] if chain else root
    for block_idx in range(len(chain), num_blocks):
        start = block_idx * block_size
        tokens = array("q", token_ids[start : start + block_size])
        digest = sha256(digest + tokens.tobytes()).digest()
        chain.append(digest)
