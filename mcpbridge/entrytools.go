package mcpbridge

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// list asks for the server's tools.
func (e *entry) list(ctx context.Context, cl *client.Client) (l toolList, err error) {
	if _, ok := cl.Init().Capabilities["tools"]; !ok {
		return toolList{}, nil
	}
	defs, more, err := cl.List(ctx, "tools/list", "tools", client.ListBounds{Items: e.srv.Limits.Tools, Bytes: e.srv.Limits.ListBytes})
	if err != nil {
		return l, err
	}
	return toolList{defs: defs, more: more, http: e.network.Load()}, nil
}

// toolList is a list of tools as the server gave it.
type toolList struct {
	defs []json.RawMessage
	more bool // it went on beyond the limit
	http bool // calls are HTTP requests
}

// watchPins admits the last list again when something was approved.
func (e *entry) watchPins(ctx context.Context) {
	t := time.NewTicker(e.reg.pinsEvery)
	defer t.Stop()
	for stamp := e.reg.pins.stamp(e.slug); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := e.reg.pins.stamp(e.slug)
		if now == stamp {
			continue
		}
		stamp = now
		if e.snap.Load() != nil {
			e.take(nil)
		}
	}
}

// relist is a new admission while the server runs. If it fails the old one
// stays.
func (e *entry) relist(ctx context.Context, cl *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, e.srv.StartTimeout)
	defer cancel()
	l, err := e.list(ctx, cl)
	if err != nil {
		e.log.Warn("server's changed tool list could not be read: the old one stays", "error", relay.Cut([]byte(err.Error()), 300))
		return
	}
	e.take(&l)
	e.keep(ctx, cl, l)
}

// take admits a list of tools; nil is the last one again.
func (e *entry) take(l *toolList) {
	e.taking.Lock()
	defer e.taking.Unlock()
	if l != nil {
		e.last = *l
	}
	snap := admit(e.last, e.srv)
	e.pin(snap)
	for _, u := range snap.unapproved {
		e.log.Warn("tool is not as it was approved", "tool", u.Tool, "reason", u.Reason)
	}
	old := e.snap.Load()
	if old == nil {
		old = &snapshot{}
	}
	snap.flag(e.reg.finder, old)
	e.snap.Store(snap)
	e.reportFlagged(snap, old)
	for _, l := range snap.leftOut {
		if slices.Contains(old.leftOut, l) {
			continue // said once, not at every listing
		}
		say := e.log.Warn
		if l.Reason == errNotSelected.Error() {
			say = e.log.Info
		}
		say("tool left out", "tool", l.Tool, "reason", relay.Cut([]byte(l.Reason), 300))
	}
	added, removed, changed := diff(old, snap)
	if len(added)+len(removed)+len(changed) > 0 {
		e.reg.publish(Event{
			Type: EventTools, Server: e.slug, Tools: len(snap.tools),
			Added: added, Removed: removed, Changed: changed, LeftOut: snap.leftOut, Flagged: snap.flagged,
		})
	}
}

func (e *entry) notified(method string, params json.RawMessage) {
	if method == "notifications/tools/list_changed" {
		e.poke()
	}
	e.shared.broadcast(&e.flight, method, params)
	e.reg.tell(e, method, params)
}

func (e *entry) poke() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}
