# SPDX-License-Identifier: Apache-2.0
"""Makes an environment of Horovod 0.28.1, which knows no newer TensorFlow than 2.12 and Keras 2.

`python -m benchmarks.horovod_environment` takes some ten minutes. It needs Python 3.9, a C++
compiler and the package registry.
"""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path("build/horovod")
PACKAGES = (
    "setuptools<70", "wheel", "cmake==3.27.9", "tensorflow-cpu==2.12.1", "numpy<1.24", "psutil",
    "pyyaml", "cloudpickle", "cffi", "packaging",
)  # fmt: skip
BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
}


def python() -> str | None:
    """Returns the environment's Python, or None if it has not been made."""
    path = HOME / "bin" / "python"
    return str(path.absolute()) if (HOME / ".built").exists() else None


def make() -> None:
    """Makes the environment.

    Raises:
        RuntimeError: if there is no Python 3.9.
        subprocess.CalledProcessError: if something cannot be installed.
    """
    base = _python_39()
    subprocess.run([base, "-m", "venv", "--clear", str(HOME)], check=True)
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True)
    subprocess.run([*pip, *PACKAGES], check=True)
    build = {**os.environ, **BUILD, "HOROVOD_CMAKE": str((HOME / "bin" / "cmake").absolute())}
    flags = ["--no-build-isolation", "--no-deps", "--no-binary=horovod", "horovod==0.28.1"]
    subprocess.run([*pip, *flags], check=True, env=build)
    (HOME / ".built").touch()


def _python_39() -> str:
    pyenv = sorted(glob.glob(str(Path.home() / ".pyenv/versions/3.9.*/bin/python")))
    found = [*pyenv, *filter(None, [shutil.which("python3.9")])]
    for candidate in found:
        if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    raise RuntimeError("Horovod 0.28.1 needs TensorFlow 2.12 and so Python 3.9. Found none.")


if __name__ == "__main__":
    make()
    sys.exit(0)
