//go:build linux

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	// maxConns bounds one sandbox's connections; more are reset. The policy's
	// own limit, whose refusals are recorded, is meant to be met first.
	maxConns = 4096
	// maxLookups bounds one sandbox's look-ups under way. More datagrams are
	// dropped, as a busy resolver would.
	maxLookups = 64
	// lookupTimeout bounds one look-up; stub resolvers give up earlier.
	lookupTimeout = 15 * time.Second
)

// Config is what a Gateway needs.
type Config struct {
	// TCP and UDP are the listening sockets, nil where a family is missing;
	// Refused is the log group's netlink socket. The Gateway owns them unless
	// New fails.
	TCP, UDP []*os.File
	Refused  *os.File
	// Egress answers. The caller closes it.
	Egress sandbox.Gateway
	// Pin lets endpoints through, and returns once they are.
	Pin func(ctx context.Context, endpoints []netip.AddrPort, ttl time.Duration) error
	// Logger receives diagnostics.
	Logger *slog.Logger
}

// Gateway is one sandbox's gateway being served.
type Gateway struct {
	cfg     Config
	ctx     context.Context
	cancel  context.CancelFunc
	lookups chan struct{}
	conns   chan struct{}
	wg      sync.WaitGroup
	closers []func() error
}

// New takes the descriptors over and begins to serve. On an error they are
// still the caller's.
func New(cfg Config) (*Gateway, error) {
	if cfg.Egress == nil || cfg.Pin == nil || cfg.Logger == nil {
		return nil, errors.New("gateway: it needs an Egress, a Pin and a Logger")
	}
	g := &Gateway{cfg: cfg, lookups: make(chan struct{}, maxLookups), conns: make(chan struct{}, maxConns)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	var listeners []*net.TCPListener
	var sockets []*net.UDPConn
	err := each(cfg.TCP, func(f *os.File) error {
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		g.closers = append(g.closers, l.Close)
		tl, ok := l.(*net.TCPListener)
		if !ok {
			return errors.New("a listening socket that is not TCP")
		}
		listeners = append(listeners, tl)
		return nil
	})
	if err == nil {
		err = each(cfg.UDP, func(f *os.File) error {
			c, err := net.FilePacketConn(f)
			if err != nil {
				return err
			}
			g.closers = append(g.closers, c.Close)
			uc, ok := c.(*net.UDPConn)
			if !ok {
				return errors.New("a datagram socket that is not UDP")
			}
			sockets = append(sockets, uc)
			return wantDestination(uc)
		})
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	// The net package has copies of its own.
	for _, f := range append(cfg.TCP, cfg.UDP...) {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, l := range listeners {
		g.wg.Go(func() { g.acceptAll(l) })
	}
	for _, c := range sockets {
		g.wg.Go(func() { g.answerAll(c) })
	}
	if cfg.Refused != nil {
		g.closers = append(g.closers, cfg.Refused.Close)
		g.wg.Go(func() { g.reportAll(cfg.Refused) })
	}
	return g, nil
}

func each(files []*os.File, f func(*os.File) error) error {
	for _, file := range files {
		if file == nil {
			continue
		}
		if err := f(file); err != nil {
			return err
		}
	}
	return nil
}

// Close stops listening, ends connections and look-ups, and waits for them.
func (g *Gateway) Close() {
	g.cancel()
	for _, c := range g.closers {
		_ = c()
	}
	g.wg.Wait()
}

// resolve asks the Egress. A nil answer means: send nothing.
func (g *Gateway) resolve(query []byte) []byte {
	ctx, cancel := context.WithTimeout(g.ctx, lookupTimeout)
	defer cancel()
	answer, err := g.cfg.Egress.Resolve(ctx, query, func(endpoints []netip.AddrPort, ttl time.Duration) error {
		return g.cfg.Pin(ctx, endpoints, ttl)
	})
	if err != nil {
		g.cfg.Logger.Debug("look-up failed", "error", err)
	}
	return answer
}
