package mcpbridge

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Tasks (2025-11-25, experimental). A task belongs to the session that began
// it, under an id of the bridge's own: two servers' ids cannot clash, and no
// client can name another's.

const (
	maxTasks    = 256 // of one session
	relatedTask = "io.modelcontextprotocol/related-task"
)

// task is one of a session's.
type task struct {
	e    *entry
	wire string // the server's id
	tool *tool
	last []byte // as the server described it last, under the bridge's id
}

// runsTasks says whether a server takes calls as tasks from this session.
func (s *aggSession) runsTasks(ctx context.Context, e *entry) bool {
	if s.modern != nil || e.srv.Sharing == SharingCall {
		return false // nothing that could be asked about it would be left
	}
	cl := s.present(e)
	if cl == nil {
		var err error
		if cl, err = e.acquire(ctx); err != nil {
			return false
		}
		defer e.release()
	}
	var caps struct {
		Requests struct {
			Tools struct {
				Call json.RawMessage `json:"call"`
			} `json:"tools"`
		} `json:"requests"`
	}
	return json.Unmarshal(cl.Init().Capabilities["tasks"], &caps) == nil && caps.Requests.Tools.Call != nil
}

// adopt takes a task that a server began, and gives the result with the
// bridge's id. A result that is no task stays.
func (s *aggSession) adopt(e *entry, t *tool, result []byte) ([]byte, error) {
	at, twice := onlyMember(result, "task")
	if twice || at.End == 0 {
		return result, nil
	}
	wire, span, ok := taskID(at.Of(result))
	if !ok {
		return nil, errf(CodeBadResult, "the server began a task without an id")
	}
	own := e.slug + "-" + rand.Text()
	described, err := relay.Splice(at.Of(result), relay.Edit{Span: span, With: quoted(own)})
	if err != nil {
		return nil, errf(CodeBadResult, "the server's task cannot be read")
	}
	s.mu.Lock()
	full := len(s.tasks) >= maxTasks
	if full { // those that ended make room
		for id, o := range s.tasks {
			if o.ended() {
				delete(s.tasks, id)
				full = false
			}
		}
	}
	if !full {
		s.tasks[own] = &task{e, wire, t, described}
	}
	s.mu.Unlock()
	if full {
		return nil, errf(CodeBusy, "this session has %d tasks already: get their results, or cancel some", maxTasks)
	}
	return relay.Splice(result, relay.Edit{Span: at, With: described})
}

func taskID(object []byte) (id string, span relay.Span, ok bool) {
	span, twice := onlyMember(object, "taskId")
	ok = !twice && json.Unmarshal(span.Of(object), &id) == nil && id != "" && len(id) <= 1024
	return id, span, ok
}

func (t *task) ended() bool {
	status, _ := relay.Member(t.last, "status")
	switch string(status.Of(t.last)) {
	case `"completed"`, `"failed"`, `"cancelled"`:
		return true
	}
	return false
}

// task serves the requests that name one.
func (s *aggSession) task(ctx context.Context, method string, id, params []byte) []byte {
	own, span, ok := taskID(params)
	s.mu.Lock()
	t := s.tasks[own]
	s.mu.Unlock()
	if !ok || t == nil {
		return relay.ErrorLine(id, -32602, "no such task: a task is known to the session that began it")
	}
	res, err := t.e.exchange(ctx, s, method, "", func(*client.Client) (*client.Progress, []byte, error) {
		sent, err := relay.Splice(params, relay.Edit{Span: span, With: quoted(t.wire)})
		return nil, sent, err
	})
	if err != nil {
		return errorLine(id, err)
	}
	if method == "tasks/result" {
		if _, err := t.tool.result(res); err != nil {
			return errorLine(id, err)
		}
		return resultLine(id, prefixResult(t.e.slug, "tools/call", related(res, own)))
	}
	if wire, at, ok := taskID(res); ok && wire == t.wire {
		if res, err = relay.Splice(res, relay.Edit{Span: at, With: quoted(own)}); err == nil {
			s.seen(t, res)
		}
	}
	return resultLine(id, res)
}

// related puts the bridge's id into a result's _meta, in place of the server's.
func related(result []byte, own string) []byte {
	at, _ := relay.Member(result, "_meta")
	of, ok := relay.Member(at.Of(result), relatedTask)
	if !ok {
		return result
	}
	span := relay.Span{Start: at.Start + of.Start, End: at.Start + of.End}
	_, id, ok := taskID(span.Of(result))
	if !ok {
		return result
	}
	out, err := relay.Splice(result, relay.Edit{Span: relay.Span{Start: span.Start + id.Start, End: span.Start + id.End}, With: quoted(own)})
	if err != nil {
		return result
	}
	return out
}

// seen keeps how a task was described last.
func (s *aggSession) seen(t *task, described []byte) {
	s.mu.Lock()
	t.last = bytes.Clone(described)
	s.mu.Unlock()
}

// listTasks asks the servers how the session's tasks are.
func (s *aggSession) listTasks(ctx context.Context) [][]byte {
	s.mu.Lock()
	all := map[string]*task{}
	for id, t := range s.tasks {
		all[id] = t
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	places := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for id, t := range all {
		s.mu.Lock()
		ended := t.ended()
		s.mu.Unlock()
		if ended {
			continue
		}
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			s.task(ctx, "tasks/get", []byte("0"), fmt.Appendf(nil, `{"taskId":%s}`, quoted(id)))
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out [][]byte
	for _, t := range all {
		out = append(out, t.last)
	}
	return out
}

// taskStatus is a server's word about a task of this session, or nil.
func (s *aggSession) taskStatus(e *entry, params []byte) []byte {
	wire, span, ok := taskID(params)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for own, t := range s.tasks {
		if t.e != e || t.wire != wire {
			continue
		}
		out, err := relay.Splice(params, relay.Edit{Span: span, With: quoted(own)})
		if err != nil {
			return nil
		}
		t.last = out
		return bytes.Clone(out)
	}
	return nil
}

// The client can work off what it is asked as a task, too. Such a task belongs
// to the server that asked.

// begun notes the task that a client's answer began.
func (s *aggSession) begun(e *entry, raw []byte, result relay.Span) {
	at, ok := relay.Member(result.Of(raw), "task")
	if !ok {
		return
	}
	if id, _, ok := taskID(at.Of(result.Of(raw))); ok {
		s.mu.Lock()
		if len(s.theirs) < maxTasks {
			s.theirs[id] = e
		}
		s.mu.Unlock()
	}
}

// asksOwn says whether a server asks about a task of the client that is its
// own. s.mu is held.
func (s *aggSession) asksOwn(e *entry, params []byte) bool {
	id, _, ok := taskID(params)
	return ok && s.theirs[id] == e
}
