package wasinet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Conn is a TCP connection with the peer's address, which the standard
// library cannot tell on this system.
type Conn struct {
	*net.TCPConn
	remote net.Addr
}

// RemoteAddr is the address that was dialled; for a name, the one that stands
// for it.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Transport returns an HTTP transport that dials with DialContext. It uses no
// proxy. HTTP/2 is left out: one stream a connection is enough for a guest.
func Transport() *http.Transport {
	return &http.Transport{
		DialContext:           DialContext,
		TLSHandshakeTimeout:   20 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConns:          16,
	}
}

// DialContext opens a TCP connection. network is tcp, tcp4 or tcp6; address is
// host:port with a numeric port. A refusal by policy is ECONNREFUSED, or EACCES
// where the look-up already knew it. ctx bounds the connect.
func DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return conn, nil
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, &net.AddrError{Err: "not a numeric port", Addr: address}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	addr, err := Lookup(host)
	if err != nil {
		return nil, err
	}
	return connect(ctx, netip.AddrPortFrom(addr, uint16(port)))
}

// Lookup returns the address that stands for a name, or a literal's own. It
// sends nothing.
func Lookup(host string) (netip.Addr, error) {
	addr, errno := getaddrinfo(host)
	if errno != 0 {
		return netip.Addr{}, &net.DNSError{
			Err: errno.Error(), Name: host, IsNotFound: errno == syscall.ENOENT || errno == syscall.EACCES, UnwrapErr: errno,
		}
	}
	return addr, nil
}

func connect(ctx context.Context, to netip.AddrPort) (_ net.Conn, err error) {
	fd, errno := open(to.Addr())
	if errno != 0 {
		return nil, os.NewSyscallError("sock_open", errno)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("set_nonblock", err)
	}
	f := os.NewFile(uintptr(fd), "tcp")
	c, err := net.FileConn(f) // takes a share of the descriptor
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("a socket that is no TCP connection: %T", c)
	}
	if err := finish(ctx, tcp, to); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return &Conn{TCPConn: tcp, remote: net.TCPAddrFromAddrPort(to)}, nil
}

// finish begins the connect and waits for its outcome in the runtime's poller.
func finish(ctx context.Context, tcp *net.TCPConn, to netip.AddrPort) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	// An expired write deadline is what wakes the wait below.
	unhook := context.AfterFunc(ctx, func() { _ = tcp.SetWriteDeadline(time.Unix(1, 0)) })
	defer unhook()
	begun := false
	var outcome syscall.Errno
	err = raw.Write(func(fd uintptr) bool {
		if !begun {
			begun = true
			outcome = startConnect(int32(fd), to)
			return outcome != syscall.EINPROGRESS
		}
		outcome = socketError(int32(fd))
		return outcome != 0 || connected(int32(fd))
	})
	if !unhook() || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil && outcome != 0 {
		err = os.NewSyscallError("connect", outcome)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
