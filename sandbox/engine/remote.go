//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
	"github.com/sandboxd/sandboxd/sandbox/engine/internal/gateway"
)

const (
	// pinTimeout bounds how long a look-up's answer waits for the engine.
	pinTimeout = 5 * time.Second
	// killTimeout bounds Close after its context has ended.
	killTimeout = removeTimeout + 15*time.Second
)

// remote is a sandbox that an engine runs for this client.
type remote struct {
	client  *Client
	session *session
	call    *call
	id      string
	grace   time.Duration
	stdio   sandbox.Stdio
	egress  sandbox.Egress
	gateway *gateway.Gateway

	closing  sync.Once
	killing  sync.Once
	kill     chan struct{} // closed when the ladder shall end at once
	released chan struct{} // closed when the ladder has ended, if it began
	exit     sandbox.Exit
	done     chan struct{} // closed when exit is known and nothing is left
}

var _ sandbox.Sandbox = (*remote)(nil)

func newRemote(c *Client, s *session, call *call, id string, grace time.Duration, f container.Files) *remote {
	return &remote{
		client: c, session: s, call: call, id: printable(id, maxName), grace: grace,
		stdio: sandbox.Stdio{In: stream{f.Stdin}, Out: stream{f.Stdout}, Err: stream{f.Stderr}},
		kill:  make(chan struct{}), released: make(chan struct{}), done: make(chan struct{}),
	}
}

// serveGateway serves the gateway's descriptors with egress.
func (r *remote) serveGateway(f container.Files, egress sandbox.Egress) error {
	g, err := gateway.New(gateway.Config{
		TCP:     []*os.File{f.TCP4, f.TCP6},
		UDP:     []*os.File{f.UDP4, f.UDP6},
		Refused: f.Refused,
		Egress:  egress,
		Pin:     r.pin,
		Logger:  r.client.log.With("sandbox", r.id),
	})
	if err != nil {
		return fmt.Errorf("serving the gateway: %w", err)
	}
	r.gateway, r.egress = g, egress
	return nil
}

// pin has the engine let endpoints through, and waits until it does.
func (r *remote) pin(ctx context.Context, endpoints []netip.AddrPort, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, pinTimeout)
	defer cancel()
	list, err := pinOpenings(endpoints, ttl)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		n := min(len(list), maxOpenings)
		if _, err := roundTrip[*doneMsg](ctx, r.session, &openMsg{Target: r.call.id, Open: list[:n]}); err != nil {
			return fmt.Errorf("opening the gateway: %w", err)
		}
		list = list[n:]
	}
	return nil
}

// pinOpenings gives one opening for each address with its ports; port 0 stands
// for every port. A pin without a time would open more than its look-up allows,
// so it is refused.
func pinOpenings(endpoints []netip.AddrPort, ttl time.Duration) ([]container.Opening, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("%w: a pin for %s", sandbox.ErrInvalid, ttl)
	}
	var list []container.Opening
	at := map[netip.Addr]int{}
	for _, e := range endpoints {
		addr := e.Addr().Unmap()
		if !addr.IsValid() || addr.Zone() != "" {
			return nil, fmt.Errorf("%w: a pin for %s", sandbox.ErrInvalid, e)
		}
		if e.Port() == 0 {
			list = append(list, container.Opening{Prefix: netip.PrefixFrom(addr, addr.BitLen()), TTL: min(ttl, maxTTL)})
			continue
		}
		i, ok := at[addr]
		if !ok || len(list[i].Ports) == maxPorts {
			i = len(list)
			at[addr] = i
			list = append(list, container.Opening{Prefix: netip.PrefixFrom(addr, addr.BitLen()), TTL: min(ttl, maxTTL)})
		}
		list[i].Ports = append(list[i].Ports, e.Port())
	}
	return list, nil
}

// watch waits for the engine's word that the sandbox is gone, or for the end
// of the engine, and lets go of everything else.
func (r *remote) watch() {
	reply, err := r.session.take(context.Background(), r.call)
	var m *exitedMsg
	if err == nil {
		m, err = expect[*exitedMsg](reply)
	}
	if err != nil {
		r.exit = sandbox.Exit{Cause: sandbox.HostFault, Detail: printable(err.Error(), maxText)}
		// What is left of the guest may still hold the other ends.
		r.closeStdio()
	} else {
		r.exit = m.Exit
		r.exit.Detail = printable(r.exit.Detail, maxText)
	}
	if r.gateway != nil {
		if err := r.egress.Close(); err != nil {
			r.client.log.Warn("closing a sandbox's egress failed", "sandbox", r.id, "error", err)
		}
		r.gateway.Close()
	}
	r.client.forget(r)
	close(r.done)
}

func (r *remote) closeStdio() {
	_ = r.stdio.In.Close()
	_ = r.stdio.Out.Close()
	_ = r.stdio.Err.Close()
}

// ID implements sandbox.Sandbox.
func (r *remote) ID() string { return r.id }

// Stdio implements sandbox.Sandbox.
func (r *remote) Stdio() sandbox.Stdio { return r.stdio }

// Wait implements sandbox.Sandbox.
func (r *remote) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-r.done:
		return r.exit, nil
	default:
	}
	select {
	case <-r.done:
		return r.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close implements sandbox.Sandbox.
func (r *remote) Close(ctx context.Context) error {
	// One ladder for all callers; it outlives the one whose context ends, and
	// ends with the sandbox or the session.
	r.closing.Do(func() { go r.ladder() }) //nolint:contextcheck // detached, as said
	var late <-chan time.Time
	ended := ctx.Done()
	for waiting := true; waiting; {
		select {
		case <-r.released:
			waiting = false
		case <-ended:
			ended = nil
			r.killing.Do(func() { close(r.kill) })
			late = time.After(killTimeout)
		case <-late:
			r.closeStdio()
			return fmt.Errorf("sandbox %s: the engine has not removed it after %s", r.id, killTimeout)
		}
	}
	r.closeStdio()
	return nil
}

// ladder closes stdin, waits, and has the engine do the rest. Close waits for
// it, unless the engine does not answer.
func (r *remote) ladder() {
	defer close(r.released)
	_ = r.stdio.In.Close()
	grace := time.NewTimer(r.grace)
	defer grace.Stop()
	killed := false
	select {
	case <-r.done:
		return
	case <-grace.C:
	case <-r.kill:
		killed = true
	}
	r.requestStop(killed)
	if !killed {
		select {
		case <-r.done:
			return
		case <-r.kill:
			r.requestStop(true)
		}
	}
	<-r.done
}

// requestStop asks the engine for the rest of the ladder. Where the engine is
// gone, watch knows already.
func (r *remote) requestStop(kill bool) {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	if _, err := roundTrip[*doneMsg](ctx, r.session, &stopMsg{Target: r.call.id, Kill: kill}); err != nil {
		r.client.log.Warn("stopping a sandbox failed", "sandbox", r.id, "error", err)
	}
}

// stream is one of a guest's streams; after its Close, use gives ErrClosed.
type stream struct{ f *os.File }

func (s stream) Read(b []byte) (int, error) {
	n, err := s.f.Read(b)
	return n, closedError(err)
}

func (s stream) Write(b []byte) (int, error) {
	n, err := s.f.Write(b)
	return n, closedError(err)
}

// Close is idempotent.
func (s stream) Close() error {
	if err := s.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func closedError(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("%w: %w", sandbox.ErrClosed, err)
	}
	return err
}
