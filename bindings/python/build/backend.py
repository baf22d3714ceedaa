"""The build backend: maturin builds the module, and cargo the command `gdsync` and its verbs' programs, which the
package carries."""

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
COMMANDS = PACKAGE / "python" / "gdsync" / "_command"
# Programs by package.
PROGRAMS = {"gdsync": "gdsync-cli", "gdsync-lab": "gdsync-lab", "gdsync-soft": "gdsync-soft", "gdsync-top": "gdsync-top"}


def _build_commands() -> None:
    build = ["cargo", "build", "--release", "--locked", "--bins"]
    build += [f"--package={package}" for package in PROGRAMS.values()]
    # cargo's messages are for people; pip uses stdout itself.
    subprocess.run(build, cwd=WORKSPACE, stdout=sys.stderr, check=True)
    metadata = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"]
    target = subprocess.run(metadata, cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=True).stdout
    folder = Path(target.split('"target_directory":"', 1)[1].split('"', 1)[0])
    COMMANDS.mkdir(exist_ok=True)
    for program in PROGRAMS:
        command = COMMANDS / program
        shutil.copy2(folder / "release" / program, command)
        if shutil.which("strip"):
            subprocess.run(["strip", command], check=True)
        os.chmod(command, 0o755)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_commands()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _build_commands()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("gdsync is built from its repository: pip install ./bindings/python, or pip wheel")
