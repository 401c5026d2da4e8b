//go:build linux

package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// listenPort is where the gateway's sockets listen, in its own namespace.
const listenPort = 1053

// listen makes the gateway's sockets and puts them into files. They belong to
// the gateway's namespace for good, whoever holds them.
func listen(ns *os.File, files *Files) error {
	return inNetns(ns, func() error {
		for _, s := range []struct {
			into **os.File
			kind int
			addr netip.Addr
			name string
		}{
			{&files.TCP4, unix.SOCK_STREAM, gatewayV4.Addr(), "tcp4"},
			{&files.TCP6, unix.SOCK_STREAM, gatewayV6.Addr(), "tcp6"},
			{&files.UDP4, unix.SOCK_DGRAM, gatewayV4.Addr(), "udp4"},
			{&files.UDP6, unix.SOCK_DGRAM, gatewayV6.Addr(), "udp6"},
		} {
			f, err := bound(s.kind, netip.AddrPortFrom(s.addr, listenPort), s.name)
			if err != nil {
				return fmt.Errorf("listen on %s: %w", s.name, err)
			}
			*s.into = f
		}
		f, err := refusals()
		if err != nil {
			return fmt.Errorf("log group: %w", err)
		}
		files.Refused = f
		return nil
	})
}

func bound(kind int, at netip.AddrPort, name string) (_ *os.File, err error) {
	domain := unix.AF_INET6
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	if at.Addr().Is4() {
		domain = unix.AF_INET
		sa = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	if err := unix.Bind(fd, sa); err != nil {
		return nil, err
	}
	if kind == unix.SOCK_STREAM {
		if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
			return nil, err
		}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// The parts of nfnetlink_log's protocol that configure a group
// (linux/netfilter/nfnetlink_log.h).
const (
	nflogConfig        = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG
	nflogAttrCmd       = 1
	nflogAttrMode      = 2
	nflogAttrTimeout   = 4 // in hundredths of a second
	nflogAttrThreshold = 5
	nflogBind          = 1 // NFULNL_CFG_CMD_BIND
	nflogCopyPacket    = 2 // NFULNL_COPY_PACKET
)

// refusals returns a socket on which the kernel reports each refused packet,
// at once. It needs rights only here; whoever holds it just reads.
func refusals() (_ *os.File, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	// A reader that falls behind loses reports; it need not hear of it.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1); err != nil {
		return nil, err
	}
	mode := binary.BigEndian.AppendUint32(nil, refusedSnap)
	mode = append(mode, nflogCopyPacket, 0)
	for i, attrs := range [][]byte{
		attribute(nflogAttrCmd, []byte{nflogBind}),
		attribute(nflogAttrMode, mode),
		append(attribute(nflogAttrThreshold, []byte{0, 0, 0, 1}), attribute(nflogAttrTimeout, []byte{0, 0, 0, 1})...),
	} {
		if err := configure(fd, uint32(i+1), attrs); err != nil {
			return nil, err
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "refused"), nil
}

// attribute encodes one netlink attribute, padded to four bytes.
func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// configure sends one message about the log group and waits for its
// acknowledgement.
func configure(fd int, seq uint32, attrs []byte) error {
	const nfgenmsg = 4
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+nfgenmsg+len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, nflogConfig)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, unix.AF_UNSPEC, 0)
	b = binary.BigEndian.AppendUint16(b, refusedGroup)
	b = append(b, attrs...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(reply[4:]) != unix.NLMSG_ERROR {
		return errors.New("unexpected reply of netlink")
	}
	if errno := -int32(binary.NativeEndian.Uint32(reply[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
