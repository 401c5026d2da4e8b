//go:build linux

package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dnsPort = 53
	// maxQuery bounds a DNS message from the guest: a question and an OPT
	// record take a few hundred bytes.
	maxQuery = 4096
	// dnsIdle bounds the wait for a query's bytes on a TCP connection, and for
	// an answer to be taken.
	dnsIdle = 10 * time.Second
	// maxTCPQueries bounds the queries of one DNS connection.
	maxTCPQueries = 128
	acceptPause   = 20 * time.Millisecond
)

// acceptAll serves a listener until it is closed.
func (g *Gateway) acceptAll(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			if g.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			g.cfg.Logger.Warn("accepting at the gateway failed", "error", err)
			select { // out of descriptors, most likely: let some end
			case <-time.After(acceptPause):
			case <-g.ctx.Done():
			}
			continue
		}
		select {
		case g.conns <- struct{}{}:
			g.wg.Go(func() {
				defer func() { <-g.conns }()
				g.serveConn(c)
			})
		default:
			g.cfg.Logger.Warn("resetting a connection: too many at once", "limit", maxConns)
			reset(c)
		}
	}
}

// serveConn finds out what a connection asked for and hands it on.
func (g *Gateway) serveConn(c *net.TCPConn) {
	stop := context.AfterFunc(g.ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { _ = c.Close() }()
	dst, err := originalDestination(c)
	if err != nil {
		// Nothing redirected it: the guest found the listener itself.
		g.cfg.Logger.Debug("resetting a connection without a destination", "error", err)
		g.cfg.Egress.Refused("tcp", localAddr(c))
		reset(c)
		return
	}
	if dst.Port() == dnsPort {
		g.serveDNS(c)
		return
	}
	g.cfg.Egress.ServeConn(g.ctx, c, dst)
}

var errNotRedirected = errors.New("the connection was made to the gateway itself")

// originalDestination asks connection tracking what the guest connected to.
func originalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	local := localAddr(c)
	rc, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var dst netip.AddrPort
	var inner error
	err = rc.Control(func(fd uintptr) {
		if local.Addr().Is4() {
			// struct sockaddr_in fits in what x/sys offers for the call.
			var m *unix.IPv6Mreq
			if m, inner = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); inner == nil {
				dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Multiaddr[4:8])), binary.BigEndian.Uint16(m.Multiaddr[2:4]))
			}
			return
		}
		// IP6T_SO_ORIGINAL_DST has SO_ORIGINAL_DST's number and gives a struct
		// sockaddr_in6, port in network order.
		var m *unix.IPv6MTUInfo
		if m, inner = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST); inner == nil {
			var port [2]byte
			binary.NativeEndian.PutUint16(port[:], m.Addr.Port)
			dst = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), binary.BigEndian.Uint16(port[:]))
		}
	})
	if err = errors.Join(err, inner); err != nil {
		return netip.AddrPort{}, err
	}
	if !dst.IsValid() || dst.Port() == 0 || dst == local {
		return netip.AddrPort{}, errNotRedirected
	}
	return dst, nil
}

// localAddr is the gateway's own end, never a 4-in-6 address.
func localAddr(c *net.TCPConn) netip.AddrPort {
	a, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// reset closes a connection so that its other end sees ECONNRESET.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// serveDNS answers DNS over TCP (RFC 7766), one query after the other.
func (g *Gateway) serveDNS(c *net.TCPConn) {
	for range maxTCPQueries {
		if err := c.SetDeadline(time.Now().Add(dnsIdle)); err != nil {
			return
		}
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n == 0 || n > maxQuery {
			reset(c)
			return
		}
		query := make([]byte, n)
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		select {
		case g.lookups <- struct{}{}:
		case <-g.ctx.Done():
			return
		}
		answer := g.resolve(query)
		<-g.lookups
		if answer == nil || len(answer) > 0xffff {
			continue
		}
		if err := c.SetDeadline(time.Now().Add(dnsIdle)); err != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}
