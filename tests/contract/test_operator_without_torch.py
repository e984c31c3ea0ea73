"""The operator's image holds no torch: no part of the operator may need the engine's libraries."""

import subprocess
import sys

_IMPORT_ALL = """
import importlib, pkgutil, sys

class Blocked:
    NAMES = {"torch", "triton", "transformers", "octavo_engine", "octavo_kernels"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocked())
import octavo_operator

for module in pkgutil.iter_modules(octavo_operator.__path__):
    if module.name != "__main__":
        importlib.import_module(f"octavo_operator.{module.name}")
print(len([name for name in sys.modules if name.startswith("octavo_operator.")]))
"""


def test_every_module_of_the_operator_imports_without_torch():
    result = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, timeout=120
    )

    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20
