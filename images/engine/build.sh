#!/usr/bin/env bash
# Builds the engine's parts (containerd, its shim, runc and runsc, each from a
# module of its own, and the first process of a sandbox), into a cache outside the repository, and prints the folder
# that holds the programs on stdout. Everything else goes to stderr.
#
#   build.sh [containerd|containerd-shim-runc-v2|runc|runsc|sandbox-init]…   (default: all)
#   build.sh --path       print the folder without building
#
# The folder's name is a hash of what goes into the programs (versions, sums,
# this script, the Go version), so that a finished folder never changes and a
# second run does nothing. "current" beside it points to the newest one.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
parts=(containerd containerd-shim-runc-v2 runc runsc sandbox-init)
init_source=$here/../../sandbox/container/init/init.c

say() { printf 'engine: %s\n' "$*" >&2; }
die() { say "$1"; exit "${2:-1}"; }

# version MODULE-FOLDER MODULE-PATH prints the pinned version.
version() { awk -v m="$2" '$1 == m || ($1 == "require" && $2 == m) { print ($1 == m) ? $2 : $3; exit }' "$here/$1/go.mod"; }

# The programs run as root and outlive the tree that built them: no setting of
# the caller's shell may change what goes in.
export GOFLAGS='' GOWORK=off GOOS=linux GOEXPERIMENT=''
unset GOAMD64 GOARM64 CGO_CFLAGS CGO_LDFLAGS

command -v go >/dev/null || die 'no Go toolchain: install Go 1.26.6 or later and put go on PATH'
[[ $(uname -s) == Linux ]] || die 'the engine runs on Linux only; the WASM tier needs no engine'
gover=$(cd "$here/containerd" && go env GOVERSION) || die 'go does not run here (see the line above)'
arch=$(go env GOARCH)

key=$({
	printf '%s %s\n' "$gover" "$arch"
	for m in containerd shim runc runsc; do cat "$here/$m/go.mod" "$here/$m/go.sum"; done
	cat "$here/build.sh" "$init_source"
} | sha256sum | cut -c1-16)
cache=${SANDBOXD_ENGINE_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or SANDBOXD_ENGINE_CACHE}/.cache}/sandboxd/engine}
[[ $cache == /* ]] || die 'SANDBOXD_ENGINE_CACHE must be an absolute path' 2
out=$cache/$key

if [[ ${1:-} == --path ]]; then
	printf '%s\n' "$out"
	exit 0
fi
want=("$@")
((${#want[@]})) || want=("${parts[@]}")
for p in "${want[@]}"; do
	[[ " ${parts[*]} " == *" $p "* ]] || die "unknown part '$p': use ${parts[*]}" 2
done

command -v flock >/dev/null || die 'flock is missing: install util-linux'
mkdir -p "$out"
exec 9>"$cache/.lock"
flock -n 9 || { say 'another build is running, waiting for it'; flock 9; }

tmp=
trap '[[ -z $tmp ]] || rm -f -- "$tmp"' EXIT
rm -f -- "$out"/.building-* # an interrupted run's; the lock makes them ours

# build NAME MODULE-FOLDER PACKAGE CGO TAGS LDFLAGS
build() {
	local name=$1 mod=$2 pkg=$3 cgo=$4 tags=$5 ld=$6 start=$SECONDS
	if [[ -x $out/$name ]]; then
		say "$name is there"
		return
	fi
	say "building $name (some minutes when it is the first time)"
	tmp=$out/.building-$name
	(cd "$here/$mod" && CGO_ENABLED=$cgo go build -mod=readonly -buildvcs=false -trimpath \
		-tags "$tags" -ldflags "-s -w $ld" -o "$tmp" "$pkg") || die "building $name failed (see the lines above)"
	"$tmp" --version >/dev/null || die "$name was built but does not run"
	chmod 0755 "$tmp"
	mv -f -- "$tmp" "$out/$name"
	tmp=
	say "$name built in $((SECONDS - start)) s"
}

# What containerd leaves out at build time cannot be switched on by a
# configuration: no CRI, no tracing exporter, no snapshotter but overlay's kin.
containerd_pkg=github.com/containerd/containerd/v2
containerd_tags='osusergo netgo static_build urfave_cli_no_docs no_cri no_tracing no_btrfs no_devmapper no_zfs'

for p in "${want[@]}"; do
	case $p in
	containerd)
		v=$(version containerd $containerd_pkg)
		build "$p" containerd $containerd_pkg/cmd/containerd 0 "$containerd_tags" "-X $containerd_pkg/version.Version=$v"
		;;
	containerd-shim-runc-v2)
		v=$(version shim $containerd_pkg)
		build "$p" shim $containerd_pkg/cmd/containerd-shim-runc-v2 0 \
			'osusergo netgo static_build urfave_cli_no_docs no_grpc' "-X $containerd_pkg/version.Version=$v"
		;;
	runc)
		# Without cgo and libseccomp runc would start containers without any
		# seccomp filter, so their lack is an error here. Static, so that the
		# program does not depend on libraries of the host it is copied to.
		if [[ ! -x $out/runc ]]; then
			command -v "${CC:-gcc}" >/dev/null || die 'runc needs a C compiler: install gcc'
			command -v pkg-config >/dev/null && pkg-config --exists 'libseccomp >= 2.5' ||
				die 'runc needs libseccomp 2.5 or later: install libseccomp-dev and pkg-config'
		fi
		build "$p" runc github.com/opencontainers/runc 1 'seccomp netgo osusergo urfave_cli_no_docs' "-linkmode external -extldflags -static"
		"$out/runc" --version | grep -q '^libseccomp:' || die 'runc was built without seccomp'
		;;
	sandbox-init)
		[[ -x $out/$p ]] && continue
		command -v "${CC:-gcc}" >/dev/null || die 'sandbox-init needs a C compiler: install gcc'
		tmp=$out/.building-$p
		"${CC:-gcc}" -Os -static -s -Wall -Wextra -Werror -o "$tmp" "$init_source" || die 'sandbox-init did not build (see above; it needs the static C library of libc6-dev)'
		mv -f -- "$tmp" "$out/$p"
		tmp=
		;;
	runsc)
		v=$(version runsc gvisor.dev/gvisor)
		build "$p" runsc gvisor.dev/gvisor/runsc 0 '' "-X gvisor.dev/gvisor/runsc/version.version=$v"
		;;
	esac
done

# A folder that lacks a part never takes the place of a whole one.
whole=1
for p in "${parts[@]}"; do [[ -x $out/$p ]] || whole=0; done
if ((whole)) || [[ ! -e $cache/current ]]; then
	ln -sfn -- "$key" "$cache/.current.new"
	mv -fT -- "$cache/.current.new" "$cache/current"
fi
printf '%s\n' "$out"
