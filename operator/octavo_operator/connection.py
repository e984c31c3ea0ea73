"""How the API server is reached: a pod's ServiceAccount, else the user's kubeconfig.

One place for our own client and for kopf, so that both speak with the same credentials. Goes by the
address in the environment, so that the operator needs no cluster DNS.
"""

import os
from pathlib import Path

import kopf
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from octavo_operator.errors import ConfigurationError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECTIONS = 32


async def configuration() -> Configuration:
    """Raises ConfigurationError when there is neither a ServiceAccount nor a kubeconfig."""
    loaded = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=loaded)
        else:
            await load_kube_config(client_configuration=loaded)
    except ConfigException as error:
        raise ConfigurationError(f"no way to reach an API server: {error}") from error
    loaded.connection_pool_maxsize = _CONNECTIONS
    return loaded


async def for_kopf() -> kopf.ConnectionInfo:
    """Read anew each time: kopf asks again when a token was refused."""
    loaded = await configuration()
    bearer = await loaded.get_api_key_with_prefix("BearerToken")
    return kopf.ConnectionInfo(
        server=loaded.host,
        ca_path=loaded.ssl_ca_cert,
        insecure=not loaded.verify_ssl,
        token=bearer.split(" ", 1)[-1] if bearer else None,
        certificate_path=loaded.cert_file,
        private_key_path=loaded.key_file,
    )


def client(loaded: Configuration) -> ApiClient:
    return ApiClient(loaded)


def own_namespace() -> str:
    """Where the Lease lives: POD_NAMESPACE, else the pod's namespace, else default."""
    given = os.environ.get("POD_NAMESPACE")
    if given:
        return given
    if _NAMESPACE_FILE.exists():
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return "default"
