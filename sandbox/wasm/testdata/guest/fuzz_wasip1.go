package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"unsafe"
)

// The functions once more, all parameters as plain numbers.

//go:wasmimport wasi_snapshot_preview1 args_get
func zArgs(a, b uint32) uint32

//go:wasmimport wasi_snapshot_preview1 environ_sizes_get
func zEnvSizes(a, b uint32) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func zRandom(a, b uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_readdir
func zReaddir(a, b, c uint32, d uint64, e uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_pread
func zPread(a, b, c uint32, d uint64, e uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_pwrite
func zPwrite(a, b, c uint32, d uint64, e uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_seek
func zSeek(a uint32, b uint64, c, d uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_allocate
func zAllocate(a uint32, b, c uint64) uint32

//go:wasmimport wasi_snapshot_preview1 fd_filestat_get
func zFilestat(a, b uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_filestat_set_times
func zSetTimes(a uint32, b, c uint64, d uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_prestat_dir_name
func zPrestatName(a, b, c uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_renumber
func zRenumber(a, b uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_filestat_get
func zPathStat(a, b, c, d, e uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_readlink
func zReadlink(a, b, c, d, e, f uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_symlink
func zSymlink(a, b, c, d, e uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_rename
func zRename(a, b, c, d, e, f uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_link
func zLink(a, b, c, d, e, f, g uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_getaddrinfo
func zAddrinfo(a, b, c, d, e, f, g, h uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_getpeeraddr
func zPeer(a, b, c, d uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_getsockopt
func zSockopt(a, b, c, d, e uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_recv
func zRecv(a, b, c, d, e, f uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_send
func zSend(a, b, c, d, e uint32) uint32

// arena is what functions may scribble on without ending the guest.
var arena [1 << 16]byte

// fuzzHost calls host functions with wild arguments. Descriptors stay above
// the standard streams so that the report still arrives.
func fuzzHost(args []string) error {
	rounds, _ := strconv.Atoi(args[0])
	seed, _ := strconv.ParseUint(args[1], 10, 64)
	rnd := rand.New(rand.NewPCG(seed, 2))
	base := uint32(uintptr(unsafe.Pointer(&arena)))
	top := uint32(1) << 31
	p := func() uint32 { // a pointer or a length: inside, at the edge, far out
		switch rnd.IntN(6) {
		case 0:
			return base + rnd.Uint32N(1<<15)
		case 1:
			return ^uint32(0) - rnd.Uint32N(64)
		case 2:
			return top + rnd.Uint32()
		case 3:
			return 0xffff_0000 + rnd.Uint32N(1<<16)
		case 4:
			return ^uint32(0)
		}
		return base
	}
	n := func() uint32 {
		if rnd.IntN(3) > 0 {
			return rnd.Uint32N(64)
		}
		return ^rnd.Uint32N(1 << 20)
	}
	fd := func() uint32 { return 3 + rnd.Uint32N(6) }
	out := func() uint32 { // written to: the arena, or out of bounds for sure
		if rnd.IntN(2) == 0 {
			return base + 1<<15 + rnd.Uint32N(1<<14)
		}
		return ^uint32(0) - rnd.Uint32N(2)
	}
	calls := []func() uint32{
		func() uint32 { return zArgs(out(), out()) },
		func() uint32 { return zEnvSizes(out(), out()) },
		func() uint32 { return zRandom(base, ^uint32(0)) },
		func() uint32 { return zReaddir(fd(), base, rnd.Uint32N(4096), rnd.Uint64(), out()) },
		func() uint32 { return zReaddir(fd(), ^uint32(0), n(), 0, out()) },
		func() uint32 { return zPread(fd(), p(), n(), rnd.Uint64(), out()) },
		func() uint32 { return zPwrite(fd(), p(), n(), rnd.Uint64()>>40, out()) },
		func() uint32 { return zSeek(fd(), rnd.Uint64(), rnd.Uint32N(5), out()) },
		func() uint32 { return zAllocate(fd(), rnd.Uint64(), rnd.Uint64()) },
		func() uint32 { return zFilestat(fd(), out()) },
		func() uint32 { return zSetTimes(fd(), rnd.Uint64(), rnd.Uint64(), rnd.Uint32()) },
		func() uint32 { return zPrestatName(fd(), base, rnd.Uint32N(64)) },
		func() uint32 { return zRenumber(fd(), fd()) },
		func() uint32 { return zPathStat(fd(), rnd.Uint32(), p(), n(), out()) },
		func() uint32 { return zReadlink(fd(), p(), n(), base, rnd.Uint32N(64), out()) },
		func() uint32 { return zSymlink(p(), n(), fd(), p(), n()) },
		func() uint32 { return zRename(fd(), p(), n(), fd(), p(), n()) },
		func() uint32 { return zLink(fd(), rnd.Uint32(), p(), n(), fd(), p(), n()) },
		func() uint32 {
			return pathOpen(fd(), rnd.Uint32(), p(), n(), rnd.Uint32N(20), rnd.Uint64(), rnd.Uint64(), rnd.Uint32N(40), out())
		},
		func() uint32 { return pollOneoff(base, base+1<<15, 1+rnd.Uint32N(4), out()) },
		func() uint32 { return pollOneoff(p(), p(), ^uint32(0), out()) },
		func() uint32 { return sockOpen(rnd.Uint32N(4), rnd.Uint32N(4), out()) },
		func() uint32 { return sockConnect(fd(), p(), rnd.Uint32()) },
		func() uint32 { return sockShutdown(fd(), rnd.Uint32N(8)) },
		func() uint32 { return zAddrinfo(p(), n(), p(), n(), p(), out(), n(), out()) },
		func() uint32 { return zPeer(fd(), p(), out(), out()) },
		func() uint32 { return zSockopt(fd(), rnd.Uint32N(2), rnd.Uint32N(5), out(), out()) },
		func() uint32 { return zRecv(fd(), p(), n(), rnd.Uint32N(6), out(), out()) },
		func() uint32 { return zSend(fd(), p(), n(), rnd.Uint32N(2), out()) },
	}
	seen := map[uint32]int{}
	for i := range rounds {
		// A blocking call on a half-open socket would wait for ever: the
		// records for poll hold a clock that is due.
		for j := range 1 << 10 {
			arena[j] = byte(rnd.Uint32())
		}
		for j := range 4 {
			arena[j*48+8] = 0
			clear(arena[j*48+16 : j*48+48])
		}
		seen[calls[i%len(calls)]()]++
	}
	fmt.Println("survived", len(seen) > 3)
	return nil
}
