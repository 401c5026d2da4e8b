package mcpbridge

import (
	"context"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/fair"
)

// EventType is the closed set of what a Registry reports.
type EventType string

// The events.
const (
	EventStarting EventType = "server.starting"
	EventReady    EventType = "server.ready"
	EventIdle     EventType = "server.idle"   // a call starts it
	EventDown     EventType = "server.down"   // it will be started again
	EventFailed   EventType = "server.failed" // it will not, until Retry
	EventStopped  EventType = "server.stopped"
	EventTools    EventType = "tools.changed"
	EventCall     EventType = "call.finished"
)

// Event is one thing that happened. It carries no argument, result or secret.
type Event struct {
	Time   time.Time `json:"time"`
	Type   EventType `json:"type"`
	Server string    `json:"server"` // the slug
	// Reason says why, for server.down and server.failed.
	Reason string `json:"reason,omitempty"`
	// Stderr is then what the server wrote there last: a few lines, each cut
	// and quoted, without what Config.Secrets names.
	Stderr string `json:"stderr,omitempty"`
	// Action, OK, Code, Millis and Bytes (of the result) describe a call.
	Action string  `json:"action,omitempty"`
	OK     bool    `json:"ok,omitempty"`
	Code   Code    `json:"code,omitempty"`
	Millis float64 `json:"ms,omitempty"`
	Bytes  int     `json:"bytes,omitempty"`
	// Text is the beginning of the answer's text, see Config.EventText.
	Text string `json:"text,omitempty"`
	// Tools counts what is admitted; the lists name what an admission changed.
	Tools   int       `json:"tools,omitempty"`
	Added   []string  `json:"added,omitempty"`
	Removed []string  `json:"removed,omitempty"`
	Changed []string  `json:"changed,omitempty"`
	LeftOut []LeftOut `json:"left_out,omitempty"`
	Flagged []Flagged `json:"flagged,omitempty"`
}

// hub gives events to subscribers that may be slow: what one does not take in
// time it misses.
type hub struct {
	places *fair.Queue // of those that subscribe
	mu     sync.Mutex
	subs   map[chan Event]struct{}
}

// subscribe is nil where there are as many subscribers as may be, for a client
// that has one already.
func (h *hub) subscribe(ctx context.Context, client string) (<-chan Event, func()) {
	if h.places.Enter(ctx, client) != nil { // nobody waits for a place
		return nil, nil
	}
	ch, stop := h.follow()
	return ch, func() {
		stop()
		h.places.Leave(client)
	}
}

// follow is for sessions, which have bounds of their own.
func (h *hub) follow() (<-chan Event, func()) {
	ch := make(chan Event, 256)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = map[chan Event]struct{}{}
	}
	h.subs[ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs, ch)
	}
}

func (h *hub) publish(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs {
		select {
		case ch <- e:
		default:
		}
	}
}
