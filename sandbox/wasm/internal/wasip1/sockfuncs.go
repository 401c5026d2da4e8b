package wasip1

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// WasmEdge's constants, which are not POSIX's.
const (
	familyInet4  = 1
	familyInet6  = 2
	typeDatagram = 1
	typeTCP      = 2
	levelSocket  = 0
	optType      = 1
	optError     = 2
	addrType4    = 4 // what getpeeraddr and getlocaladdr report
	addrType6    = 6
)

// socketExports are WasmEdge's socket functions (its first version of them,
// which the Rust crate wasmedge_wasi_socket and Go shims import). A guest can
// connect, and nothing else: there is no listening and no UDP.
func socketExports() map[string]export {
	return map[string]export{
		"sock_open":         {"iii", sockOpen},
		"sock_connect":      {"iii", sockConnect},
		"sock_getsockopt":   {"iiiii", sockGetsockopt},
		"sock_setsockopt":   {"iiiii", sockSetsockopt},
		"sock_getpeeraddr":  {"iiii", sockGetpeeraddr},
		"sock_getlocaladdr": {"iiii", sockGetlocaladdr},
		"sock_getaddrinfo":  {"iiiiiiii", sockGetaddrinfo},
		"sock_bind":         {"iii", notOffered},
		"sock_listen":       {"ii", notOffered},
		"sock_recv_from":    {"iiiiiiii", notOffered},
		"sock_send_to":      {"iiiiiii", notOffered},
	}
}

func (s *System) getSock(fd int32) (*file, Errno) {
	f, e := s.get(fd)
	if e == Success && f.sock == nil {
		return nil, ENOTSOCK
	}
	return f, e
}

// sockOpen(family, type, out fd)
func sockOpen(s *System, m memory, p params) Errno {
	family := p.u32(0)
	switch {
	case s.cfg.Dial == nil:
		return EACCES
	case family != familyInet4 && family != familyInet6:
		return EAFNOSUPPORT
	case p.u32(1) != typeTCP:
		return EPROTONOSUPPORT
	}
	if e := m.canPutU32(p.u32(2)); e != Success {
		return e
	}
	fd, e := s.add(&file{
		kind: typeStream, rights: rightsStream | rightRead | rightWrite | rightShutdown,
		sock: &socket{sys: s, v6: family == familyInet6},
	})
	if e != Success {
		return e
	}
	return m.putU32(p.u32(2), uint32(fd))
}

// sockConnect(fd, address, port). The address of a looked-up name is dialled
// by that name: resolving it is the host's business.
func sockConnect(s *System, m memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	addr, e := m.readAddr(p.u32(1))
	port := p.u32(2)
	switch {
	case e != Success:
		return e
	case port == 0 || port > 65535:
		return EINVAL
	}
	switch state, _ := f.sock.status(); state {
	case sockNew:
	case sockConnecting:
		return EALREADY
	case sockConnected:
		return EISCONN
	case sockFailed:
		return ECONNABORTED // a socket dials once
	}
	host, ok := s.names.name(addr)
	if !ok {
		host = addr.String()
	}
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	if e := f.sock.connect(address, netip.AddrPortFrom(addr, uint16(port))); e != Success {
		return e
	}
	if f.nonblock() {
		return EINPROGRESS
	}
	return s.usable(f)
}

// sockGetsockopt(fd, level, name, out value, in/out size) knows SO_ERROR and
// SO_TYPE.
func sockGetsockopt(s *System, m memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	size, ok := m.ReadUint32Le(p.u32(4))
	switch {
	case !ok:
		return EFAULT
	case size < 4 || p.u32(1) != levelSocket:
		return EINVAL
	}
	if e := m.canPutU32(p.u32(3)); e != Success {
		return e
	}
	var v uint32
	switch p.u32(2) {
	case optType:
		v = typeTCP
	case optError:
		f.sock.mu.Lock()
		v, f.sock.err = uint32(f.sock.err), Success
		if f.sock.state == sockFailed {
			f.sock.err = ECONNABORTED // what a later use gets
		}
		f.sock.mu.Unlock()
	default:
		return ENOPROTOOPT
	}
	if e := m.putU32(p.u32(3), v); e != Success {
		return e
	}
	return m.putU32(p.u32(4), 4)
}

// sockSetsockopt takes hints (buffer sizes, keep-alive) and does nothing about
// them: the connection is the host's.
func sockSetsockopt(s *System, _ memory, p params) Errno {
	_, e := s.getSock(p.fd(0))
	if e == Success && p.u32(1) != levelSocket {
		e = ENOPROTOOPT
	}
	return e
}

func sockGetpeeraddr(s *System, m memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	if state, _ := f.sock.status(); state != sockConnected {
		return ENOTCONN
	}
	return m.putAddr(p, f.sock.peer)
}

// sockGetlocaladdr reports no address: the host's own is none of the guest's
// business.
func sockGetlocaladdr(s *System, m memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	a := netip.IPv4Unspecified()
	if f.sock.v6 {
		a = netip.IPv6Unspecified()
	}
	return m.putAddr(p, netip.AddrPortFrom(a, 0))
}

// sockGetaddrinfo(node, its length, service, its length, hints, in/out result
// list, places in it, out places used) fills one entry of the list that the
// guest prepared.
func sockGetaddrinfo(s *System, m memory, p params) Errno {
	if p.u32(1) > maxNameLength+2 || p.u32(3) > 16 {
		return ENAMETOOLONG
	}
	node, e := m.view(p.u32(0), p.u32(1))
	if e != Success {
		return e
	}
	service, e := m.view(p.u32(2), p.u32(3))
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(7)); e != Success {
		return e
	}
	port := uint64(0)
	if text := strings.TrimRight(string(service), "\x00"); text != "" {
		var err error
		if port, err = strconv.ParseUint(text, 10, 16); err != nil {
			return EINVAL
		}
	}
	addr, e := s.lookup(strings.TrimRight(string(node), "\x00"))
	if e != Success {
		return e
	}
	if p.u32(6) == 0 {
		return m.putU32(p.u32(7), 0)
	}
	list, ok := m.ReadUint32Le(p.u32(5))
	if !ok {
		return EFAULT
	}
	if e := m.putAddrinfo(list, netip.AddrPortFrom(addr, uint16(port))); e != Success {
		return e
	}
	return m.putU32(p.u32(7), 1)
}

// sockAccept has nothing to accept from: no guest can listen.
func sockAccept(s *System, _ memory, p params) Errno {
	if _, e := s.getSock(p.fd(0)); e != Success {
		return e
	}
	return EINVAL
}

// sockRecv(fd, buffers, their number, flags, out bytes, out flags)
func sockRecv(s *System, m memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	const peek, waitAll = 1, 2
	flags := p.u32(3)
	if flags&^(peek|waitAll) != 0 {
		return EINVAL
	}
	bufs, e := m.iovecs(p.u32(1), p.u32(2))
	if e != Success {
		return e
	}
	for _, out := range []uint32{p.u32(4), p.u32(5)} {
		if e := m.canPutU32(out); e != Success {
			return e
		}
	}
	n, e := s.recv(f, bufs, flags&peek != 0)
	for flags == waitAll && e == Success && n > 0 && !f.nonblock() {
		rest := skip(bufs, n)
		if len(rest) == 0 {
			break
		}
		k, e := s.recv(f, rest, false)
		if k == 0 || e != Success {
			break
		}
		n += k
	}
	if e != Success {
		return e
	}
	if e := m.putU32(p.u32(5), 0); e != Success {
		return e
	}
	return m.putU32(p.u32(4), uint32(n))
}

// skip drops the first n bytes of a list of buffers.
func skip(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if len(bufs) == 0 {
		return nil
	}
	return append([][]byte{bufs[0][n:]}, bufs[1:]...)
}

// sockSend(fd, buffers, their number, flags, out bytes)
func sockSend(s *System, m memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	if p.u32(3) != 0 {
		return EINVAL
	}
	bufs, e := m.iovecs(p.u32(1), p.u32(2))
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(4)); e != Success {
		return e
	}
	n, e := s.send(f, bufs)
	if e != Success {
		return e
	}
	return m.putU32(p.u32(4), uint32(n))
}

// sockShutdown(fd, directions): 1 reading, 2 writing.
func sockShutdown(s *System, _ memory, p params) Errno {
	f, e := s.getSock(p.fd(0))
	if e != Success {
		return e
	}
	how := p.u32(1)
	if how == 0 || how > 3 {
		return EINVAL
	}
	if state, _ := f.sock.status(); state != sockConnected {
		return ENOTCONN
	}
	if how&1 != 0 {
		f.sock.in.closeWrite(Success)
	}
	if how&2 != 0 {
		f.sock.out.closeWrite(Success)
	}
	return Success
}
