#!/usr/bin/env bash
# Builds libgdsync and installs it with its headers and its files for pkg-config and CMake, and the command gdsync with its manual pages and
# completions: scripts/install.sh PREFIX. Needs Rust and a C linker.
# scripts/install.sh --mpi PREFIX: libgdsync-mpis and libgdsync-mpix instead (scripts/install-mpi).
# DESTDIR, if set, goes before PREFIX. Builds target/release, unless GDSYNC_BUILD_PROFILE names another cargo profile.
# GDSYNC_BUILD_FEATURES names features of the crates: `nvtx` for ranges that profilers show.
set -euo pipefail
if [ "${1:-}" = --mpi ]; then
    shift
    exec "$(dirname "$0")/install-mpi" "$@"
fi
source "$(dirname "$0")/install-library"
begin "$0" "$@"
build gdsync-c gdsync-cli gdsync-lab gdsync-soft gdsync-top
c_library
tool
