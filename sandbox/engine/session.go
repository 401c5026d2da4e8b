//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// session is the client's end of one connection.
type session struct {
	conn  *packetConn
	hello welcomeMsg

	mu    sync.Mutex
	next  uint32
	calls map[uint32]*call
	err   error         // why the session ended
	done  chan struct{} // closed when it has
}

// call is one request that has had no final reply yet.
type call struct {
	id uint32
	// replies takes at most two: an interim one and the final one. It is
	// closed when the session ends.
	replies chan reply
	// abandoned means that nobody takes replies any more. Under session.mu.
	abandoned bool
}

type reply struct {
	m     message
	files []*os.File
}

// dial connects, checks who is at the other end and says hello.
func dial(ctx context.Context, socket string) (*session, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return nil, dialError(socket, err)
	}
	s := &session{
		conn:  newPacketConn(c.(*net.UnixConn)), //nolint:forcetypeassert // the network is unixpacket
		calls: map[uint32]*call{}, done: make(chan struct{}),
	}
	defer waitClosed(ctx, s.conn.close)()
	if err := s.greet(ctx); err != nil {
		s.conn.close()
		return nil, err
	}
	go s.read()
	return s, nil
}

// greet refuses an engine that is neither root's nor the caller's own: it
// would be handed secrets and folders.
func (s *session) greet(ctx context.Context) error {
	cred, err := peerCredentials(s.conn.c)
	if err != nil {
		return err
	}
	if cred.uid != 0 && int(cred.uid) != os.Geteuid() {
		return fmt.Errorf("%w: the engine runs as user %d, neither root nor you", ErrProtocol, cred.uid)
	}
	deadline := time.Now().Add(helloTimeout)
	if t, ok := ctx.Deadline(); ok && t.Before(deadline) {
		deadline = t
	}
	if err := s.conn.c.SetReadDeadline(deadline); err != nil {
		return err
	}
	err = s.conn.send(0, &helloMsg{Version: protocolVersion})
	var m message
	var files []*os.File
	// An engine that refuses a connection says why and closes it, unread hello
	// and all; the kernel reports that before it hands out what was said.
	for tries := 0; tries < 2 && (tries == 0 || errors.Is(err, syscall.ECONNRESET)); tries++ {
		if err == nil || isGone(err) {
			_, m, files, err = s.conn.recv()
			closeAll(files)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if isGone(err) {
			return &sandbox.UnavailableError{Tier: sandbox.Container, What: "the engine is ending", Next: "try again"}
		}
		return fmt.Errorf("engine hello: %w", err)
	}
	switch m := m.(type) {
	case *errorMsg:
		return m.toError()
	case *welcomeMsg:
		if m.Version != protocolVersion {
			return fmt.Errorf("%w: the engine speaks version %d, this program %d", ErrProtocol, m.Version, protocolVersion)
		}
		s.hello = *m
		s.next = 1
		return s.conn.c.SetReadDeadline(time.Time{})
	}
	return fmt.Errorf("%w: the engine answered hello with %s", ErrProtocol, m.kind())
}

// read hands replies to their calls until the connection ends.
func (s *session) read() {
	var err error
	for err == nil {
		var id uint32
		var r reply
		if id, r.m, r.files, err = s.conn.recv(); err == nil {
			err = s.deliver(id, r)
		}
	}
	s.conn.close()
	s.mu.Lock()
	s.err = fmt.Errorf("%w: %w", errGone, err)
	for _, c := range s.calls {
		close(c.replies)
	}
	s.calls = map[uint32]*call{}
	s.mu.Unlock()
	close(s.done)
}

// deliver gives a reply to its call; a final one ends the call. What no call
// waits for is the engine breaking the protocol.
func (s *session) deliver(id uint32, r reply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	if c == nil {
		closeAll(r.files)
		if e, ok := r.m.(*errorMsg); ok && id == 0 {
			return e.toError()
		}
		return fmt.Errorf("%w: a reply to no request", ErrProtocol)
	}
	switch r.m.(type) {
	case *startedMsg, *pipeMsg:
	default:
		delete(s.calls, id)
	}
	if c.abandoned {
		closeAll(r.files)
		return nil
	}
	select {
	case c.replies <- r:
		return nil
	default:
		closeAll(r.files)
		return fmt.Errorf("%w: too many replies to one request", ErrProtocol)
	}
}

// send begins a request.
func (s *session) send(m message, files ...*os.File) (*call, error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	c := &call{replies: make(chan reply, 2)}
	for {
		c.id = s.next
		if s.next++; c.id != 0 && s.calls[c.id] == nil {
			break
		}
	}
	s.calls[c.id] = c
	s.mu.Unlock()

	err := s.conn.send(c.id, m, files...)
	if err == nil {
		return c, nil
	}
	s.mu.Lock()
	delete(s.calls, c.id)
	s.mu.Unlock()
	if errors.Is(err, errTooBig) {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	// A message may be half accounted for: the connection is of no more use.
	s.conn.close()
	return nil, fmt.Errorf("%w: %w", errGone, err)
}

// take waits for the call's next reply.
func (s *session) take(ctx context.Context, c *call) (reply, error) {
	select {
	case r, ok := <-c.replies:
		if !ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			return reply{}, s.err
		}
		if e, isErr := r.m.(*errorMsg); isErr {
			closeAll(r.files)
			return reply{}, e.toError()
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
}

// roundTrip is for requests with one reply. A reply that comes after ctx has
// ended is dropped with its call.
func roundTrip[R message](ctx context.Context, s *session, m message) (R, error) {
	var none R
	c, err := s.send(m)
	if err != nil {
		return none, err
	}
	r, err := s.take(ctx, c)
	if err != nil {
		return none, err
	}
	return expect[R](r)
}

// expect gives a reply's message, or an error where it is of another kind.
func expect[R message](r reply) (R, error) {
	m, ok := r.m.(R)
	if !ok {
		closeAll(r.files)
		return m, fmt.Errorf("%w: an unexpected %s", ErrProtocol, r.m.kind())
	}
	return m, nil
}

// close ends the session and waits for its reader.
func (s *session) close() {
	s.conn.close()
	<-s.done
}
