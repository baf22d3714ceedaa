"""The build backend: maturin builds the module, and cargo the command `gdsync` that the package carries."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin
from maturin import (  # noqa: F401  (what pip asks a backend for)
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

PACKAGE = Path(__file__).resolve().parent.parent
WORKSPACE = PACKAGE.parent.parent
COMMAND = PACKAGE / "python" / "gdsync" / "_command" / "gdsync"


def _build_command() -> None:
    build = ["cargo", "build", "--release", "--locked", "--package", "gdsync-cli", "--bin", "gdsync"]
    # cargo's messages are for people, and pip takes stdout for itself.
    subprocess.run(build, cwd=WORKSPACE, stdout=sys.stderr, check=True)
    metadata = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"]
    target = subprocess.run(metadata, cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=True).stdout
    folder = Path(target.split('"target_directory":"', 1)[1].split('"', 1)[0])
    COMMAND.parent.mkdir(exist_ok=True)
    shutil.copy2(folder / "release" / "gdsync", COMMAND)
    if shutil.which("strip"):
        subprocess.run(["strip", COMMAND], check=True)
    os.chmod(COMMAND, 0o755)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_command()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _build_command()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("gdsync is built from its repository: pip install ./bindings/python, or pip wheel")
