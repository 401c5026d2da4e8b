package netguard

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Faults of a resolution. They reach records and denials as reasons only.
var (
	ErrChain  = errors.New("CNAME chain loops or is too long")
	errAnswer = errors.New("upstream answer is unusable")
	errRcode  = errors.New("upstream refused the name")
)

const (
	upstreamTries   = 3
	upstreamTimeout = 2 * time.Second
	maxUDPAnswer    = 4096
	ednsSize        = 1232 // fits an unfragmented datagram on any path
)

// Upstream is the built-in Resolver: one fresh query a family to one server,
// over UDP from a new port each time, over TCP where the answer is truncated.
// It caches nothing, so a verdict is always about the answer just given.
type Upstream struct {
	server netip.AddrPort
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// NewUpstream takes host:port or a literal address; empty means the first
// name server of /etc/resolv.conf.
func NewUpstream(server string) (*Upstream, error) {
	if server == "" {
		f, err := os.Open("/etc/resolv.conf")
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUpstream, err)
		}
		defer func() { _ = f.Close() }()
		if server, err = firstNameserver(f); err != nil {
			return nil, err
		}
	}
	ap, err := netip.ParseAddrPort(server)
	if err != nil {
		a, err2 := netip.ParseAddr(server)
		if err2 != nil {
			return nil, fmt.Errorf("%w: %q is not an address", ErrUpstream, server)
		}
		ap = netip.AddrPortFrom(a, 53)
	}
	d := net.Dialer{Timeout: upstreamTimeout}
	return &Upstream{server: ap, dial: d.DialContext}, nil
}

func firstNameserver(r io.Reader) (string, error) {
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) >= 2 && f[0] == "nameserver" {
			return f[1], nil
		}
	}
	if err := sc.Err(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUpstream, err)
	}
	return "", fmt.Errorf("%w: /etc/resolv.conf names none", ErrUpstream)
}

// Lookup asks for both families at once. localhost is answered here and never
// leaves the host (RFC 6761, 6.3).
func (u *Upstream) Lookup(ctx context.Context, name string) (Answer, error) {
	if localhostName(name) {
		return Answer{Addrs: []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}}, nil
	}
	type half struct {
		ans Answer
		err error
	}
	six := make(chan half, 1)
	go func() {
		ans, err := u.family(ctx, name, dnsmessage.TypeAAAA)
		six <- half{ans, err}
	}()
	v4, err4 := u.family(ctx, name, dnsmessage.TypeA)
	h := <-six
	switch {
	case errors.Is(err4, ErrChain) || errors.Is(h.err, ErrChain):
		return Answer{}, ErrChain
	case err4 != nil && h.err != nil:
		return Answer{}, err4
	case err4 != nil:
		return h.ans, nil
	case h.err != nil:
		return v4, nil
	}
	return merge(h.ans, v4), nil
}

// merge interleaves both families, IPv6 first (RFC 8305, 4).
func merge(a, b Answer) Answer {
	out := Answer{Chain: max(a.Chain, b.Chain), TTL: a.TTL}
	if len(a.Addrs) == 0 || len(b.Addrs) > 0 && b.TTL < a.TTL {
		out.TTL = b.TTL
	}
	for i := 0; i < len(a.Addrs) || i < len(b.Addrs); i++ {
		if i < len(a.Addrs) {
			out.Addrs = append(out.Addrs, a.Addrs[i])
		}
		if i < len(b.Addrs) {
			out.Addrs = append(out.Addrs, b.Addrs[i])
		}
	}
	return out
}

// family asks for one record type, again where the answer got lost.
func (u *Upstream) family(ctx context.Context, name string, typ dnsmessage.Type) (Answer, error) {
	var last error
	for range upstreamTries {
		id, query, err := buildQuery(name, typ)
		if err != nil {
			return Answer{}, err
		}
		msg, err := u.exchange(ctx, "udp", id, query)
		if errors.Is(err, errTruncated) {
			msg, err = u.exchange(ctx, "tcp", id, query)
		}
		if err == nil {
			return readAnswer(msg, name, typ)
		}
		last = err
		if ctx.Err() != nil {
			break
		}
	}
	return Answer{}, last
}

func buildQuery(name string, typ dnsmessage.Type) (uint16, []byte, error) {
	var b [2]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, nil, fmt.Errorf("query id: %w", err)
	}
	id := binary.BigEndian.Uint16(b[:])
	qname, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return 0, nil, fmt.Errorf("query name: %w", err)
	}
	bld := dnsmessage.NewBuilder(make([]byte, 0, 512), dnsmessage.Header{ID: id, RecursionDesired: true})
	var opt dnsmessage.ResourceHeader
	err = errors.Join(
		bld.StartQuestions(),
		bld.Question(dnsmessage.Question{Name: qname, Type: typ, Class: dnsmessage.ClassINET}),
		bld.StartAdditionals(),
		opt.SetEDNS0(ednsSize, dnsmessage.RCodeSuccess, false),
		bld.OPTResource(opt, dnsmessage.OPTResource{}),
	)
	if err != nil {
		return 0, nil, fmt.Errorf("query: %w", err)
	}
	query, err := bld.Finish()
	return id, query, err
}

var errTruncated = errors.New("truncated")

// exchange sends the query and waits for the answer that matches it; anything
// else that arrives on the socket is ignored, as a forgery would be.
func (u *Upstream) exchange(ctx context.Context, network string, id uint16, query []byte) ([]byte, error) {
	c, err := u.dial(ctx, network, u.server.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	deadline := time.Now().Add(upstreamTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if network == "tcp" {
		return exchangeTCP(c, id, query)
	}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, maxUDPAnswer)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		ok, truncated := answers(buf[:n], id, query)
		switch {
		case ok && truncated:
			return nil, errTruncated
		case ok:
			return buf[:n], nil
		}
	}
}

func exchangeTCP(c net.Conn, id uint16, query []byte) ([]byte, error) {
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(query)))
	if _, err := c.Write(append(framed, query...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, buf); err != nil {
		return nil, err
	}
	if ok, _ := answers(buf, id, query); !ok {
		return nil, errAnswer
	}
	return buf, nil
}
