//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// abandonTimeout bounds how long a start that its caller gave up may take to
// be undone.
const abandonTimeout = 30 * time.Second

// Start implements sandbox.Runtime. It hands the image over if the engine
// lacks it, starts the sandbox and serves its gateway with egress.
func (c *Client) Start(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (sandbox.Sandbox, error) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.work.Add(1)
		defer c.work.Done()
	}
	c.mu.Unlock()
	err := fmt.Errorf("starting %q: %w", spec.Name, sandbox.ErrClosed)
	var r *remote
	if !closed {
		r, err = c.start(ctx, spec, egress)
		if errors.Is(err, errGone) && ctx.Err() == nil {
			// The engine of a session that was open had ended, and whatever it
			// started with it. Its successor is asked, or found missing.
			c.letGo(ctx)
			r, err = c.start(ctx, spec, egress)
		}
	}
	if err == nil {
		return r, nil
	}
	if egress != nil {
		err = errors.Join(err, egress.Close())
	}
	return nil, err
}

func (c *Client) start(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (*remote, error) {
	err := spec.Validate()
	if err == nil {
		err = checkSpec(&spec)
	}
	if err != nil {
		return nil, err
	}
	s, err := c.connect(ctx)
	if err != nil {
		var missing *sandbox.UnavailableError
		if errors.As(err, &missing) {
			missing.Tier = spec.Isolation
		}
		return nil, err
	}
	if err := unavailable(spec.Isolation, s.hello.Tiers); err != nil {
		return nil, err
	}
	m := &startMsg{Spec: spec, Gateway: egress != nil}
	if egress != nil {
		if m.Open, err = literals(egress); err != nil {
			return nil, err
		}
	}
	mounts, err := pathDescriptors(spec.Mounts)
	defer closeAll(mounts)
	if err != nil {
		return nil, err
	}
	if err := c.ensureImage(ctx, s, spec.Image); err != nil {
		return nil, err
	}
	call, err := s.send(m, mounts...)
	if err != nil {
		return nil, err
	}
	r, err := s.take(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			s.abandon(ctx, call)
		}
		return nil, err
	}
	started, err := expect[*startedMsg](r)
	if err != nil {
		s.abandon(ctx, call)
		return nil, err
	}
	return c.adopt(ctx, s, call, started, r.files, spec, egress)
}

// adopt makes a Sandbox of what the engine started, or has it undone.
func (c *Client) adopt(ctx context.Context, s *session, call *call, m *startedMsg, passed []*os.File, spec sandbox.Spec, egress sandbox.Egress) (*remote, error) {
	files, err := unpackFiles(m.Present, passed)
	if err != nil {
		s.abandon(ctx, call)
		return nil, err
	}
	r := newRemote(c, s, call, m.ID, spec.Limits.WithDefaults().StopGrace, files)
	if egress != nil {
		if err := r.serveGateway(files, egress); err != nil { //nolint:contextcheck // it lives as long as the sandbox
			closeFiles(&files)
			s.abandon(ctx, call)
			return nil, err
		}
	}
	// Close may have begun meanwhile: then its list lacks this one, and the
	// session that it closes ends it.
	c.mu.Lock()
	c.sandboxes[r] = struct{}{}
	c.mu.Unlock()
	c.work.Go(r.watch)
	return r, nil
}

func (c *Client) forget(r *remote) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sandboxes, r)
}

// literals turns what policy opens without a look-up into openings.
func literals(g sandbox.Gateway) ([]container.Opening, error) {
	var list []container.Opening
	for prefix, ports := range g.Literals() {
		if ports != nil && len(ports) == 0 {
			continue // no port at all, which on the wire would mean every one
		}
		list = append(list, container.Opening{Prefix: prefix.Masked(), Ports: ports})
	}
	if len(list) > maxOpenings {
		return nil, fmt.Errorf("%w: the policy opens %d separate networks without a look-up, over %d: write fewer or wider deny ranges under mode public",
			sandbox.ErrInvalid, len(list), maxOpenings)
	}
	return list, checkOpenings(list, true)
}

// pathDescriptors opens the mounts' sources anew with O_PATH, the one form
// that the engine takes.
func pathDescriptors(mounts []sandbox.Mount) ([]*os.File, error) {
	var list []*os.File
	for _, m := range mounts {
		err := withDescriptors([]*os.File{m.Source}, nil, func(fds []int) error {
			fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fds[0]), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err == nil {
				list = append(list, os.NewFile(uintptr(fd), m.Target))
			}
			return err
		})
		if err != nil {
			return list, fmt.Errorf("%w: mount %q: %w", sandbox.ErrInvalid, m.Target, err)
		}
	}
	return list, nil
}

// abandon has the engine undo a call whose caller gave up, and waits a bounded
// time for it; what comes after that is dropped as it comes.
func (s *session) abandon(ctx context.Context, c *call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if _, err := roundTrip[*doneMsg](ctx, s, &stopMsg{Target: c.id, Kill: true}); err == nil {
		for {
			r, err := s.take(ctx, c)
			if err != nil {
				break
			}
			closeAll(r.files)
			if k := r.m.kind(); k != kindStarted && k != kindPipe {
				return
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.abandoned = true
	select {
	case r := <-c.replies:
		closeAll(r.files)
	default:
	}
}
