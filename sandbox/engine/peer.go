//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/container"
)

const (
	helloTimeout = 10 * time.Second
	// maxJobs bounds the requests that one connection has open: its running
	// sandboxes and imports, and short requests under way.
	maxJobs = 1024
	// workTimeout bounds a short request.
	workTimeout = 30 * time.Second
)

// peer is one caller's connection. Its sandboxes are its jobs, named by the
// ids of the requests that started them.
type peer struct {
	srv     *Server
	host    container.Host
	conn    *packetConn
	cred    credentials
	account *account

	// ctx ends with the connection or the server, whichever is first.
	ctx    context.Context
	cancel context.CancelFunc

	mu   sync.Mutex
	jobs map[uint32]*job
	wg   sync.WaitGroup
}

func newPeer(s *Server, host container.Host, c *net.UnixConn, cred credentials, a *account) *peer {
	p := &peer{srv: s, host: host, conn: newPacketConn(c), cred: cred, account: a, jobs: map[uint32]*job{}}
	p.ctx, p.cancel = context.WithCancel(s.ctx)
	return p
}

// serve reads requests until the connection ends, then ends all that the
// connection started and waits for it.
func (p *peer) serve() {
	undo := waitClosed(p.ctx, p.conn.close)
	err := p.hello()
	for err == nil {
		err = p.next()
	}
	if !isGone(err) && p.ctx.Err() == nil {
		p.srv.log.Warn("closing a caller's connection", "uid", p.cred.uid, "error", err)
		if errors.Is(err, errMalformed) || errors.Is(err, ErrProtocol) {
			_ = p.conn.send(0, toMessage(err))
		}
	}
	p.cancel()
	p.wg.Wait()
	undo()
}

// hello waits a bounded time for the first message, which must be hello.
func (p *peer) hello() error {
	if err := p.conn.c.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	id, m, files, err := p.conn.recv()
	if err != nil {
		return err
	}
	closeAll(files)
	h, ok := m.(*helloMsg)
	if !ok || len(files) > 0 {
		return fmt.Errorf("%w: the first message was not hello", ErrProtocol)
	}
	if h.Version != protocolVersion {
		return fmt.Errorf("%w: this engine speaks version %d, the caller %d: use the same release on both sides, and restart the engine",
			ErrProtocol, protocolVersion, h.Version)
	}
	if err := p.conn.c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return p.conn.send(id, &welcomeMsg{Version: protocolVersion, Engine: p.srv.cfg.Version, Tiers: p.srv.cfg.Tiers})
}

// next reads one request and hands it to a goroutine of its own. An error ends
// the connection.
func (p *peer) next() error {
	id, m, files, err := p.conn.recv()
	if err != nil {
		return err
	}
	start, isStart := m.(*startMsg)
	if len(files) > 0 && (!isStart || len(files) != len(start.Spec.Mounts)) {
		closeAll(files)
		return fmt.Errorf("%w: %d descriptors beside a %s", errMalformed, len(files), m.kind())
	}
	j, err := p.begin(id)
	if err != nil {
		closeAll(files)
		return err
	}
	var run func() (message, error)
	switch m := m.(type) {
	case *startMsg:
		run = func() (message, error) { return p.start(id, j, m, files) }
	case *importMsg:
		run = func() (message, error) { return p.importImage(id, j, m) }
	case *hasMsg, *missingMsg, *openMsg, *stopMsg, *listMsg:
		run = func() (message, error) { return p.short(j, m) }
	default:
		p.finish(id, j)
		return fmt.Errorf("%w: a caller sent %s", errMalformed, m.kind())
	}
	p.wg.Go(func() {
		final, err := run()
		if err != nil {
			final = toMessage(err)
		}
		// Forgotten before the final reply, so that its caller may use the id
		// again as soon as it has that.
		p.finish(id, j)
		p.reply(id, final)
	})
	return nil
}

// begin makes a job of a request. An id in use, or too many jobs, is the
// caller breaking the protocol.
func (p *peer) begin(id uint32) (*job, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.jobs[id] != nil {
		return nil, fmt.Errorf("%w: request id %d is in use", errMalformed, id)
	}
	if len(p.jobs) >= maxJobs {
		return nil, fmt.Errorf("%w: over %d requests at once", ErrProtocol, maxJobs)
	}
	j := newJob(p.ctx)
	p.jobs[id] = j
	return j, nil
}

func (p *peer) finish(id uint32, j *job) {
	j.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.jobs, id)
}

func (p *peer) job(id uint32) *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[id]
}

// reply sends a message, or ends the connection of a caller that takes none.
func (p *peer) reply(id uint32, m message, files ...*os.File) {
	if err := p.conn.send(id, m, files...); err != nil {
		if p.ctx.Err() == nil {
			p.srv.log.Warn("a caller takes no replies", "uid", p.cred.uid, "error", err)
		}
		p.cancel()
	}
}
