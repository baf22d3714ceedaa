#!/usr/bin/env bash
# Builds libgdsync and installs it with its headers and its pkg-config file: scripts/install.sh PREFIX. Needs Rust and a C linker.
# DESTDIR, if set, goes before PREFIX. What is built is target/release, unless GDSYNC_BUILD_PROFILE names another cargo profile.
set -euo pipefail
if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: $0 PREFIX" >&2
    exit 2
fi
mkdir -p "${DESTDIR:-}$1"
prefix=$(cd "${DESTDIR:-}$1" && pwd)
prefix=${prefix#"${DESTDIR:-}"}
cd "$(dirname "$0")/.."

profile=${GDSYNC_BUILD_PROFILE:-release}
cargo build -p gdsync-c --profile "$profile" --quiet
folder=$profile
[ "$profile" = dev ] && folder=debug
built=${CARGO_TARGET_DIR:-target}/$folder

to=${DESTDIR:-}$prefix
soname=libgdsync.so.2
version=2.2.0
install -d "$to/lib/pkgconfig" "$to/include/gdsync/device" "$to/include/infiniband"
install -m 755 "$built/libgdsync_c.so" "$to/lib/libgdsync.so.$version"
ln -sf "libgdsync.so.$version" "$to/lib/$soname"
ln -sf "$soname" "$to/lib/libgdsync.so"
install -m 644 "$built/libgdsync_c.a" "$to/lib/libgdsync.a"
for headers in bindings/c/include gdsync/include; do
    (cd $headers && find . -type f) | while read -r header; do
        install -m 644 "$headers/$header" "$to/include/$header"
    done
done
cat >"$to/lib/pkgconfig/gdsync.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: gdsync
Description: GPUDirect Async: network work in the order of CUDA streams
Version: $version
Libs: -L\${libdir} -lgdsync
Libs.private: -lpthread -ldl -lm
Cflags: -I\${includedir}
END
echo "installed libgdsync $version to $prefix"
