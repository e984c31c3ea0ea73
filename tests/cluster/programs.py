"""The programs of a cluster: found when new enough, else built once from Go modules in tools/.

    found    $KUBEBUILDER_ASSETS, then PATH
    built    into cache_home()/tools/NAME-VERSION/NAME, kept for ever, one build at a time

Kubernetes' components are taken from one place or the other as a set: a kubelet may not be newer
than its API server. Uses nothing but the standard library, because the preflight runs before any
installation.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError, CommandFailed, Missing
from tests.cluster.run import run
from tests.cluster.state import cache_home, locked

Say = Callable[[str], None]

MODULES = Path(__file__).parent / "tools"
# Kubernetes 1.36 compiled by another Go than its own served a broken /openapi/v2 while being ready.
GO_MINOR = (1, 26)
GO_TOOLCHAIN = "go1.26.8"
_FIRST_GO_THAT_FETCHES_TOOLCHAINS = (1, 21)


@dataclass(frozen=True)
class Tool:
    """A program, the module folder that builds it, and how it tells its version."""

    name: str
    module: str
    package: str
    version_args: tuple[str, ...]
    oldest: tuple[int, int]


def _kubernetes(name: str, *version_args: str) -> Tool:
    arguments = version_args or ("--version",)
    return Tool(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", arguments, (1, 34))


KUBECTL = _kubernetes("kubectl", "version", "--client")
CONTROL_PLANE = (
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    KUBECTL,
)
NODE = (_kubernetes("kubelet"), _kubernetes("kube-proxy"))
ETCD = Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3", ("--version",), (3, 5))
# Debian 12's is 1.6: without volumes made of images, and too old for the kubelets to come.
CONTAINERD = tuple(
    Tool(name, "containerd", f"github.com/containerd/containerd/v2/cmd/{name}", arguments, (2, 1))
    for name, arguments in (
        ("containerd", ("--version",)),
        ("containerd-shim-runc-v2", ("-v",)),
        ("ctr", ("--version",)),
    )
)
KUBE_ROUTER = Tool(
    "kube-router",
    "kube-router",
    "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
    ("--version",),
    (2, 1),
)
HELM = Tool("helm", "helm", "helm.sh/helm/v4/cmd/helm", ("version", "--short"), (3, 16))


def needed(*, with_nodes: bool) -> list[tuple[Tool, ...]]:
    """What a cluster needs, in sets that must come from one place."""
    if not with_nodes:
        return [(ETCD,), CONTROL_PLANE, (HELM,)]
    return [(ETCD,), (*CONTROL_PLANE, *NODE), CONTAINERD, (HELM,)]


def locate(tools: tuple[Tool, ...]) -> dict[str, Path] | None:
    """The programs of one set, found or built earlier; None when the set has to be built."""
    # All or none: a program's version, which takes running it, is asked only when all are there.
    if all(_candidates(tool) for tool in tools):
        found = {tool.name: path for tool in tools if (path := _find(tool)) is not None}
        minors = {_version(path, tool) for tool in tools if (path := found.get(tool.name))}
        if len(found) == len(tools) and len(minors) == 1:
            return found
    built = {tool.name: _built_path(tool) for tool in tools}
    return built if all(path.exists() for path in built.values()) else None


def obtain(*, with_nodes: bool, say: Say) -> dict[str, Path]:
    """All programs by name; builds what is missing, raises `Missing` without a usable Go."""
    have: dict[str, Path] = {}
    for tools in needed(with_nodes=with_nodes):
        have |= locate(tools) or _build_set(tools, say)
    return have


def obtain_clients(*, say: Say) -> dict[str, Path]:
    """kubectl and helm only, for a cluster that others provide."""
    have: dict[str, Path] = {}
    for tool in (KUBECTL, HELM):
        have |= locate((tool,)) or _build_set((tool,), say)
    return have


def obtain_policy_enforcer(*, say: Say) -> Path:
    """Of NetworkPolicies; see policies.py."""
    tools = (KUBE_ROUTER,)
    return (locate(tools) or _build_set(tools, say))[KUBE_ROUTER.name]


def missing(*, with_nodes: bool) -> list[str]:
    """The names of the programs that `obtain` would have to build."""
    absent: list[str] = []
    for tools in needed(with_nodes=with_nodes):
        if locate(tools) is None:
            absent += [tool.name for tool in tools if not _built_path(tool).exists()]
    return absent


def go_problem() -> str | None:
    """Why the installed Go cannot build the tools, or None when it can."""
    if shutil.which("go") is None:
        return "there is no `go` on PATH"
    version = _go_version()
    if version[:2] == GO_MINOR or _may_fetch_toolchain(version):
        return None
    return f"`go` on PATH is {version[0]}.{version[1]}, and GOTOOLCHAIN lets it use no other"


def pinned_version(module: str) -> str:
    """The version that a module folder builds, such as v1.36.3."""
    text = (MODULES / module / "go.mod").read_text()
    tools = (*CONTROL_PLANE, *CONTAINERD, ETCD, HELM, KUBE_ROUTER)
    packages = {tool.package for tool in tools if tool.module == module}
    for path, version in re.findall(r"^\s*(?:require )?(\S+) (v\S+)", text, re.MULTILINE):
        if any(package == path or package.startswith(f"{path}/") for package in packages):
            return str(version)
    raise ClusterError(f"{MODULES / module / 'go.mod'}: requires none of {sorted(packages)}")


def _built_path(tool: Tool) -> Path:
    return cache_home() / "tools" / f"{tool.name}-{pinned_version(tool.module)}" / tool.name


def _candidates(tool: Tool) -> list[Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    places = [Path(assets) / tool.name] if assets else []
    if on_path := shutil.which(tool.name):
        places.append(Path(on_path))
    return [path for path in places if path.exists()]


def _find(tool: Tool) -> Path | None:
    new_enough = (path for path in _candidates(tool) if _version(path, tool) >= tool.oldest)
    return next(new_enough, None)


def _version(path: Path, tool: Tool) -> tuple[int, int]:
    try:
        said = run([path, *tool.version_args], timeout_s=30)
    except CommandFailed:
        return (0, 0)  # too old to know the question
    match = re.search(r"(\d+)\.(\d+)\.\d+", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _go_version() -> tuple[int, ...]:
    said = run(["go", "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}, cwd=Path("/"))
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


def _may_fetch_toolchain(version: tuple[int, ...]) -> bool:
    return version >= _FIRST_GO_THAT_FETCHES_TOOLCHAINS and "GOTOOLCHAIN" not in os.environ


def _build_set(tools: tuple[Tool, ...], say: Say) -> dict[str, Path]:
    problem = go_problem()
    if problem is not None:
        names, oldest = ", ".join(tool.name for tool in tools), tools[0].oldest
        raise Missing(
            f"{problem}. Install Go {GO_MINOR[0]}.{GO_MINOR[1]}, or put {names} of one version"
            f" {oldest[0]}.{oldest[1]} or newer on PATH or into $KUBEBUILDER_ASSETS."
        )
    for tool in tools:
        _build(tool, say)
    return {tool.name: _built_path(tool) for tool in tools}


def _build(tool: Tool, say: Say) -> None:
    target = _built_path(tool)
    with locked(cache_home() / "tools" / f"{tool.module}.lock", timeout_s=3600):
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{tool.name}.new")
        started = time.monotonic()
        _go_build(tool, temporary, say)
        # Only a finished program ever has the final name.
        temporary.replace(target)
        say(f"{target.parent.name} built in {time.monotonic() - started:.0f} s")


def _go_build(tool: Tool, target: Path, say: Say) -> None:
    version = pinned_version(tool.module)
    stamp = ""
    if tool.module == "kubernetes":
        major, minor, _ = version.removeprefix("v").split(".")
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        stamp = "".join(f" -X k8s.io/component-base/version.{k}={v}" for k, v in values.items())
    toolchain = "local" if _go_version()[:2] == GO_MINOR else GO_TOOLCHAIN
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", toolchain),
    }
    # Killed with us, so that it never writes beside the build that comes next.
    argv = ["setpriv", "--pdeathsig", "KILL"]
    argv += ["go", "build", "-v", "-trimpath", f"-ldflags=-s -w{stamp}", "-o", str(target)]
    folder = MODULES / tool.module
    say(f"building {tool.name} {version} (minutes the first time)")
    with subprocess.Popen(
        [*argv, tool.package], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as build:
        assert build.stderr is not None
        lines = _follow(tool.name, build.stderr, say)
    if build.returncode != 0:
        raise CommandFailed(f"go build {tool.package}: exit status {build.returncode}\n{lines}")


def _follow(name: str, stderr: Iterable[str], say: Say) -> str:
    """Tells every ten seconds how many packages are compiled; returns the last lines."""
    lines: list[str] = []
    started = said_at = time.monotonic()
    for line in stderr:
        lines.append(line)
        now = time.monotonic()
        if now - said_at >= 10:
            said_at = now
            say(f"  {name}: {len(lines)} packages, {now - started:.0f} s, now {line.strip()}")
    return "".join(lines[-30:])
