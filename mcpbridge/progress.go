package mcpbridge

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// maxProgress bounds one notification in bytes; a larger one is dropped.
const maxProgress = 64 << 10

// progress forwards one call's progress under the client's own token. The
// server it comes from is shared: what a slow client does not take in time is
// dropped, since a later notification supersedes it.
type progress struct {
	token relay.Span // within the request's params; absent: none wanted
	value []byte
	emit  streamhttp.Emit
	ch    chan []byte
	done  chan struct{}

	mu    sync.Mutex
	ended bool
}

func newProgress(params []byte, emit streamhttp.Emit) *progress {
	p := &progress{emit: emit}
	meta, ok := relay.Member(params, "_meta")
	if !ok {
		return p
	}
	tok, ok := relay.Member(meta.Of(params), "progressToken")
	if !ok {
		return p
	}
	p.token = relay.Span{Start: meta.Start + tok.Start, End: meta.Start + tok.End}
	p.value = p.token.Of(params)
	return p
}

// attach makes the params to send: edited, and with a token of the client
// session's own in place of the client's.
func (p *progress) attach(cl *client.Client, params []byte, edits ...relay.Edit) (*client.Progress, []byte, error) {
	var cp *client.Progress
	if p.token.End != 0 {
		p.ch, p.done = make(chan []byte, 64), make(chan struct{})
		go func() {
			defer close(p.done)
			for raw := range p.ch {
				send(p.emit, raw)
			}
		}()
		cp = cl.NewProgress(p.receive)
		edits = append(edits, relay.Edit{Span: p.token, With: cp.Token()})
	}
	slices.SortFunc(edits, func(a, b relay.Edit) int { return cmp.Compare(a.Start, b.Start) })
	out, err := relay.Splice(params, edits...)
	return cp, out, err
}

func (p *progress) receive(params json.RawMessage) {
	if len(params) > maxProgress {
		return
	}
	tok, ok := relay.Member(params, "progressToken")
	if !ok {
		return
	}
	own, err := relay.Splice(params, relay.Edit{Span: tok, With: p.value})
	if err != nil {
		return
	}
	msg := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":`), own...)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	select {
	case p.ch <- append(msg, '}'):
	default:
	}
}

// finish waits until what was received is sent on, and drops what comes later.
func (p *progress) finish() {
	if p.ch == nil {
		return
	}
	p.mu.Lock()
	p.ended = true
	close(p.ch)
	p.mu.Unlock()
	<-p.done
}
