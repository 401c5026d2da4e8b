package wasinet

import (
	"net/netip"
	"runtime"
	"structs"
	"syscall"
	"unsafe"
)

// WasmEdge's constants.
const (
	familyInet4 = 1
	familyInet6 = 2
	typeStream  = 2
	levelSocket = 0
	optError    = 2
)

//go:wasmimport wasi_snapshot_preview1 sock_open
//go:noescape
func sockOpen(family, sotype int32, fd *int32) syscall.Errno

//go:wasmimport wasi_snapshot_preview1 sock_connect
//go:noescape
func sockConnect(fd int32, addr *wasiAddress, port uint32) syscall.Errno

//go:wasmimport wasi_snapshot_preview1 sock_getsockopt
//go:noescape
func sockGetsockopt(fd, level, name int32, value *uint32, size *uint32) syscall.Errno

//go:wasmimport wasi_snapshot_preview1 sock_getpeeraddr
//go:noescape
func sockGetpeeraddr(fd int32, addr *wasiAddress, kind, port *uint32) syscall.Errno

//go:wasmimport wasi_snapshot_preview1 sock_getaddrinfo
//go:noescape
func sockGetaddrinfo(node *byte, nodeLen uint32, service *byte, serviceLen uint32, hints *addrinfo, res *uint32, most uint32, n *uint32) syscall.Errno

// Pointers inside these records are 32 bits wide, which Go's are not here.
type wasiAddress struct {
	_    structs.HostLayout
	buf  uint32
	size uint32
}

type wasiSockaddr struct {
	_      structs.HostLayout
	family uint8
	_      [3]byte
	size   uint32
	data   uint32
}

type addrinfo struct {
	_        structs.HostLayout
	flags    uint16
	family   uint8
	sotype   uint8
	protocol uint8
	_        [3]byte
	addrLen  uint32
	addr     uint32
	name     uint32
	nameLen  uint32
	next     uint32
}

func ptr32(p unsafe.Pointer) uint32 { return uint32(uintptr(p)) }

func open(a netip.Addr) (int, syscall.Errno) {
	family := int32(familyInet4)
	if a.Is6() {
		family = familyInet6
	}
	var fd int32
	errno := sockOpen(family, typeStream, &fd)
	return int(fd), errno
}

func startConnect(fd int32, to netip.AddrPort) syscall.Errno {
	raw := to.Addr().AsSlice()
	addr := &wasiAddress{buf: ptr32(unsafe.Pointer(&raw[0])), size: uint32(len(raw))}
	errno := sockConnect(fd, addr, uint32(to.Port()))
	runtime.KeepAlive(raw)
	return errno
}

func socketError(fd int32) syscall.Errno {
	var value uint32
	size := uint32(unsafe.Sizeof(value))
	if errno := sockGetsockopt(fd, levelSocket, optError, &value, &size); errno != 0 {
		return errno
	}
	return syscall.Errno(value)
}

func connected(fd int32) bool {
	raw := make([]byte, 16)
	addr := &wasiAddress{buf: ptr32(unsafe.Pointer(&raw[0])), size: uint32(len(raw))}
	var kind, port uint32
	errno := sockGetpeeraddr(fd, addr, &kind, &port)
	runtime.KeepAlive(raw)
	return errno == 0
}

// getaddrinfo asks for one address.
func getaddrinfo(host string) (netip.Addr, syscall.Errno) {
	if host == "" {
		return netip.Addr{}, syscall.ENOENT
	}
	node, service := []byte(host), []byte{0}
	data := new([26]byte)
	sa := &wasiSockaddr{size: uint32(len(data)), data: ptr32(unsafe.Pointer(data))}
	info := &addrinfo{addr: ptr32(unsafe.Pointer(sa))}
	hints := &addrinfo{sotype: typeStream}
	list, n := ptr32(unsafe.Pointer(info)), uint32(0)
	errno := sockGetaddrinfo(&node[0], uint32(len(node)), &service[0], 1, hints, &list, 1, &n)
	runtime.KeepAlive(data)
	runtime.KeepAlive(sa)
	runtime.KeepAlive(info)
	switch {
	case errno != 0:
		return netip.Addr{}, errno
	case n == 0:
		return netip.Addr{}, syscall.ENOENT
	case sa.family == familyInet6:
		return netip.AddrFrom16([16]byte(data[2:18])), 0
	}
	return netip.AddrFrom4([4]byte(data[2:6])), 0
}
