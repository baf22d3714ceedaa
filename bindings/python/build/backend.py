"""The build backend: maturin builds the module, and cargo the command `gdsync` and its verbs' programs, which the
package carries. A source distribution is the repository, whose folders they take their sources from."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import maturin
from maturin import (  # noqa: F401  (what pip asks a backend for)
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
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
    os.chdir(PACKAGE)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _build_commands()
    os.chdir(PACKAGE)
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    os.chdir(PACKAGE)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder, prepare_metadata_for_build_wheel(folder))
        metadata = (described / "METADATA").read_bytes()
    name = described.name.removesuffix(".dist-info")
    # Frontends take this file from there; maturin reads the project's own.
    backend, _, _ = (PACKAGE / "pyproject.toml").read_text().partition("[project]")
    backend = backend.replace('["build"]', '["bindings/python/build"]').encode()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    # Two archives of a commit are equal: nothing of this machine, and the commit's time if it is given.
    when = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

    def plain(entry):
        entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime = 0, 0, "", "", when
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        return entry

    with (
        gzip.GzipFile(Path(sdist_directory, f"{name}.tar.gz"), "wb", mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in filter(None, files):
            if os.path.lexists(WORKSPACE / file):
                archive.add(WORKSPACE / file, f"{name}/{file}", recursive=False, filter=plain)
        for file, text in {"PKG-INFO": metadata, "pyproject.toml": backend}.items():
            entry = plain(tarfile.TarInfo(f"{name}/{file}"))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return f"{name}.tar.gz"
