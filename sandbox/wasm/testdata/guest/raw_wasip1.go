package main

import (
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/wasinet"
)

//go:wasmimport wasi_snapshot_preview1 fd_read
func fdRead(fd, iovs, n, out uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_write
func fdWrite(fd, iovs, n, out uint32) uint32

//go:wasmimport wasi_snapshot_preview1 fd_fdstat_get
func fdstat(fd, out uint32) uint32

//go:wasmimport wasi_snapshot_preview1 path_open
func pathOpen(dir, lookup, path, n, oflags uint32, rights, inherit uint64, flags, out uint32) uint32

//go:wasmimport wasi_snapshot_preview1 poll_oneoff
func pollOneoff(in, out, n, count uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_connect
func sockConnect(fd, addr, port uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_open
func sockOpen(family, kind, out uint32) uint32

//go:wasmimport wasi_snapshot_preview1 sock_shutdown
func sockShutdown(fd, how uint32) uint32

func ptr(p unsafe.Pointer) uint32 { return uint32(uintptr(p)) }

// guessDescriptors tries all numbers that a guest was not given.
func guessDescriptors([]string) error {
	stat := new([24]byte)
	open := ""
	for fd := uint32(0); fd < 70000; fd++ {
		if e := fdstat(fd, ptr(unsafe.Pointer(stat))); e == 0 {
			open += fmt.Sprint(fd, " ")
		}
	}
	for _, fd := range []uint32{0x7fffffff, 0x80000000, 0xffffffff} {
		if e := fdstat(fd, ptr(unsafe.Pointer(stat))); e != 8 {
			return fmt.Errorf("descriptor %#x gives %d", fd, e)
		}
	}
	fmt.Println("open:", open)
	return nil
}

// reuseClosed uses a connection's descriptor after it was closed.
func reuseClosed(args []string) error {
	c, err := dial(args[0])
	if err != nil {
		return err
	}
	var fd uint32
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	_ = raw.Control(func(p uintptr) { fd = uint32(p) })
	c.Close()
	buf := new([8]byte)
	iov := &[2]uint32{ptr(unsafe.Pointer(buf)), 8}
	n := new(uint32)
	fmt.Println(
		fdRead(fd, ptr(unsafe.Pointer(iov)), 1, ptr(unsafe.Pointer(n))),
		fdWrite(fd, ptr(unsafe.Pointer(iov)), 1, ptr(unsafe.Pointer(n))),
		sockShutdown(fd, 3),
		sockConnect(fd, ptr(unsafe.Pointer(iov)), 80),
	)
	return nil
}

// forge dials addresses that stand for names nobody looked up.
func forge([]string) error {
	for _, a := range []string{"198.18.0.1:80", "198.18.0.2:80", "198.19.255.255:80"} {
		_, err := dial(a)
		fmt.Println(a, err)
	}
	_, err := wasinet.Lookup("allowed.test")
	fmt.Println("lookup", err)
	return nil
}

// pollKinds asks for stdin, a clock and a bad descriptor in one call.
func pollKinds([]string) error {
	subs := new([3 * 48]byte)
	put := func(i int, user byte, kind byte) []byte {
		b := subs[i*48:]
		b[0], b[8] = user, kind
		return b
	}
	put(0, 1, 1)[16] = 0   // read stdin
	put(1, 2, 1)[16] = 200 // read what is not open
	clock := put(2, 3, 0)
	clock[16] = 1
	clock[24+3] = 1 // 16 ms
	events := new([3 * 32]byte)
	n := new(uint32)
	in, out := ptr(unsafe.Pointer(subs)), ptr(unsafe.Pointer(events))
	e := pollOneoff(in, out, 3, ptr(unsafe.Pointer(n)))
	fmt.Println("errno", e, "events", *n, "user", events[0], "error", events[8])
	subs[48+8] = 0 // the bad one becomes a clock for ever
	for i := 24; i < 32; i++ {
		subs[48+i] = 0xff
	}
	subs[48+16] = 1
	e = pollOneoff(in, out, 3, ptr(unsafe.Pointer(n)))
	fmt.Println("errno", e, "events", *n, "user", events[0], "type", events[10])
	fmt.Println("ready")
	subs[2*48+31] = 0x7f // and the other one too: only stdin is left
	e = pollOneoff(in, out, 3, ptr(unsafe.Pointer(n)))
	b := make([]byte, 10)
	k, err := io.ReadAtLeast(os.Stdin, b, 1)
	fmt.Println("errno", e, "events", *n, "user", events[0], "type", events[10], "bytes", events[16], string(b[:k]), err)
	fmt.Println("none", pollOneoff(in, out, 0, ptr(unsafe.Pointer(n))), "too many", pollOneoff(in, out, 1<<20, ptr(unsafe.Pointer(n))))
	return nil
}
