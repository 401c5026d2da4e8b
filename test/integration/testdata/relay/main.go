// Command relay is what a gateway costs at the least: it accepts a redirected
// connection on descriptor 3, connects to where the guest wanted to go, and
// has the kernel copy both ways. It looks at nothing and refuses nothing; it
// is for BenchmarkEgressPaths alone.
package main

import (
	"encoding/binary"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

func main() {
	ln, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		log.Fatal(err)
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			if err := serve(c.(*net.TCPConn)); err != nil {
				log.Print(err)
			}
		}()
	}
}

func serve(guest *net.TCPConn) error {
	defer guest.Close()
	to, err := wanted(guest)
	if err != nil {
		return err
	}
	origin, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
	if err != nil {
		return err
	}
	defer origin.Close()
	var wg sync.WaitGroup
	wg.Go(func() { splice(guest, origin) })
	splice(origin, guest)
	wg.Wait()
	return nil
}

// splice copies until src ends; io.Copy has the kernel do it.
func splice(dst, src *net.TCPConn) {
	_, _ = io.Copy(dst, src)
	_ = dst.CloseWrite()
}

// wanted is the IPv4 destination from before the redirection.
func wanted(c *net.TCPConn) (to netip.AddrPort, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	var m *unix.IPv6Mreq // has room for the struct sockaddr_in that comes
	if cerr := rc.Control(func(fd uintptr) {
		m, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
	}); cerr != nil || err != nil {
		return to, err
	}
	b := m.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}
