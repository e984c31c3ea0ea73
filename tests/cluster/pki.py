"""The certificates of one cluster: one authority, short subjects that RBAC reads as user and group.

Knows files and subjects; which component uses which certificate is `control_plane.py`'s matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pki:
    """The files of one authority and what it signed; only their owner reads private keys."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def service_accounts(self) -> Path:
        """The private key that signs ServiceAccount tokens; accepted where its public half is."""
        return self.folder / "service-accounts.key"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"


@dataclass(frozen=True)
class Identity:
    """One certificate: `user` and `group` as RBAC sees them, `hosts` it may serve."""

    name: str
    user: str
    group: str | None = None
    hosts: tuple[str, ...] = ()


def make_pki(folder: Path, identities: list[Identity]) -> Pki:
    """Writes a new authority and one certificate per identity into `folder`."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    pki = Pki(folder)
    authority = trustme.CA(organization_name="octavo test cluster")
    authority.cert_pem.write_to_path(pki.ca)
    _write_private(pki.ca_key, authority.private_key_pem)
    for identity in identities:
        # An empty list of names would be a critical extension that Go refuses.
        hosts = identity.hosts or (identity.name,)
        issued = authority.issue_cert(
            *hosts, common_name=identity.user, organization_name=identity.group
        )
        _write_private(pki.key(identity.name), issued.private_key_pem)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        pki.certificate(identity.name).write_bytes(chain)
    signer = trustme.CA(organization_name="octavo test cluster tokens")
    _write_private(pki.service_accounts, signer.private_key_pem)
    return pki


def _write_private(path: Path, blob: trustme.Blob) -> None:
    path.touch(mode=0o600)
    path.write_bytes(blob.bytes())
