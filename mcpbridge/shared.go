package mcpbridge

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// sharedSession is one client of a raw endpoint that shares the registry's
// own sandbox. Params, results and errors pass as they are; ids and progress
// tokens are the shared session's. What the server asks of its client is not
// passed on, since nobody could say of which.
type sharedSession struct {
	*requests
	e      *entry
	cl     *client.Client
	filter *filter
	emit   streamhttp.Emit
	queue  *outbox // notifications for everyone
	tasks  ownTasks
}

// sharedSessions are those that hear a server's notifications.
type sharedSessions struct {
	mu  sync.Mutex
	all map[*sharedSession]struct{}
}

// broadcast never blocks: a client that is too slow misses notifications.
func (s *sharedSessions) broadcast(f *flight, method string, params json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 || method == "notifications/cancelled" {
		return
	}
	name, err := json.Marshal(method)
	if err != nil {
		return
	}
	msg := append([]byte(`{"jsonrpc":"2.0","method":`), name...)
	if params != nil {
		msg = append(append(msg, `,"params":`...), params...)
	}
	msg = append(msg, '}')
	for ss := range s.all {
		switch method {
		case "notifications/tasks/status":
			if !ss.tasks.owns(params) {
				continue
			}
		case "notifications/message":
			if !f.mayHear(ss.filter.scope) {
				continue
			}
		}
		ss.queue.put(msg)
	}
}

func (e *entry) openShared(ctx context.Context, f *filter, emit streamhttp.Emit) (*sharedSession, error) {
	cl, err := e.acquire(ctx)
	if err != nil {
		return nil, err
	}
	s := &sharedSession{requests: newRequests(), e: e, cl: cl, filter: f, emit: emit, queue: newOutbox()}
	e.shared.mu.Lock()
	if e.shared.all == nil {
		e.shared.all = map[*sharedSession]struct{}{}
	}
	e.shared.all[s] = struct{}{}
	e.shared.mu.Unlock()
	s.wg.Go(s.listen)
	return s, nil
}

func (s *sharedSession) listen() {
	defer s.e.release()
	defer func() {
		s.e.shared.mu.Lock()
		delete(s.e.shared.all, s)
		s.e.shared.mu.Unlock()
	}()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.cl.Done():
			s.cancel(&relay.ExitError{Exit: s.cl.Exit()})
			return
		case msg := <-s.queue.ch:
			s.queue.taken(msg)
			send(s.emit, append([]byte(nil), msg...))
		}
	}
}

// Receive handles one message of the client.
func (s *sharedSession) Receive(ctx context.Context, m relay.Message, raw []byte) error {
	m, raw, refusal := s.filter.fromClient(m, raw)
	if refusal != nil {
		send(s.emit, refusal)
		return nil
	}
	id, params := m.ID.Of(raw), m.Params.Of(raw)
	switch m.Kind { //nolint:exhaustive // a response answers nothing: nothing was asked
	case relay.Request:
		return s.run(id, func(ctx context.Context) { s.request(ctx, m.Method, id, params) }) //nolint:contextcheck // a request is cancelled by its own message
	case relay.Notification:
		switch m.Method {
		case "notifications/cancelled":
			s.cancelled(params)
		case "notifications/initialized", "notifications/roots/list_changed":
			// Said once for all by the bridge, and about a capability that the
			// shared session did not declare.
		default:
			return s.cl.Notify(ctx, m.Method, params)
		}
	}
	return nil
}

func (s *sharedSession) request(ctx context.Context, method string, id, params []byte) {
	if method == "initialize" {
		s.respond(resultLine(id, s.cl.Init().Raw))
		return
	}
	if !s.tasks.allows(method, params) {
		s.respond(relay.ErrorLine(id, -32602, "no such task: a task is known to the session that began it"))
		return
	}
	what := ""
	if method == "tools/call" {
		name, _ := onlyMember(params, "name")
		// What is no string is refused by the server, under no name.
		_ = json.Unmarshal(name.Of(params), &what)
	}
	ctx = context.WithValue(ctx, callerKey{}, callerOf(s.filter.scope, s))
	fwd := newProgress(params, s.emit)
	res, err := s.e.exchange(ctx, nil, method, relay.Cut([]byte(what), 128), func(cl *client.Client) (*client.Progress, []byte, error) {
		p, sent, err := fwd.attach(cl, params)
		if params == nil {
			sent = nil
		}
		return p, sent, err
	})
	fwd.finish()
	switch {
	case err != nil:
	case method == "tools/call":
		s.tasks.began(res)
	case method == "tasks/list":
		res, err = s.tasks.only(res)
	}
	if err != nil {
		s.respond(errorLine(id, err))
		return
	}
	s.respond(resultLine(id, res))
}

func (s *sharedSession) respond(line []byte) {
	m, err := relay.Peek(line)
	if err != nil {
		return
	}
	if m, line = s.filter.fromServer(m, line); line != nil {
		s.emit(m, line)
	}
}
