#!/usr/bin/env bash
# Brings what the tests need from the distribution: once, quietly, and only
# what is missing. As an ordinary user it says what is missing and stops.
set -euo pipefail

need=()
want() { # want COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || need+=("$2")
}
want gcc gcc
want ip iproute2
want nft nftables
want curl curl
want node nodejs
want npm npm
want python3 python3
want setpriv util-linux
want systemd-analyze systemd
want dpkg-deb dpkg
want pkg-config pkg-config
# Guests of the WASM tier in C and Rust.
want clang-14 clang-14
want wasm-ld-14 lld-14
[ -e /usr/include/wasm32-wasi/stdio.h ] || need+=(wasi-libc)
[ -e /usr/lib/llvm-14/lib/clang/14.0.6/lib/wasi/libclang_rt.builtins-wasm32.a ] || need+=(libclang-rt-14-dev-wasm32)
[ -d /usr/lib/rustlib/wasm32-wasi ] || need+=(libstd-rust-dev-wasm32)
[ -x /usr/bin/rustc ] || need+=(rustc)
[ -e /usr/include/seccomp.h ] || need+=(libseccomp-dev)
[ -e /etc/ssl/certs/ca-certificates.crt ] || need+=(ca-certificates)

if [ ${#need[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "missing: ${need[*]} (install them with: sudo apt-get install ${need[*]})" >&2
    exit 1
  fi
  echo "installing ${need[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >/dev/null
  apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
