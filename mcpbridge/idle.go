package mcpbridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
)

// cachedList is what is kept of a server so that it can be listed without a
// start.
type cachedList struct {
	Version int               `json:"version"`
	Key     string            `json:"key"`
	Tools   []json.RawMessage `json:"tools"`
	More    bool              `json:"more"`
	// Capabilities are the names of those that the server declared.
	Capabilities []string `json:"capabilities"`
}

func cacheName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// key is the server's cache key; empty where nothing is cached.
func (e *entry) key(ctx context.Context) string {
	if e.srv.CacheKey == nil || e.reg.cfg.StateDir == "" {
		return ""
	}
	key, err := e.srv.CacheKey(ctx)
	if err != nil {
		return "" // the start will say why
	}
	return key
}

// cached admits the list that was kept for the server as it would be started
// now. It is false where there is none; what is damaged is none.
func (e *entry) cached(ctx context.Context) bool {
	if e.srv.Required || e.srv.Autostart || e.srv.CacheKey == nil {
		return false
	}
	if e.srv.Prepare != nil && e.srv.Prepare(ctx) != nil {
		return false // the start will say why
	}
	key := e.key(ctx)
	if key == "" {
		return false
	}
	b, err := e.reg.lists.read(cacheName(key))
	if err != nil || b == nil {
		return false
	}
	var c cachedList
	if json.Unmarshal(b, &c) != nil || c.Version != 1 || c.Key != key || len(c.Tools) > e.srv.Limits.Tools {
		return false
	}
	e.mu.Lock()
	e.capabilities = c.Capabilities
	e.mu.Unlock()
	e.take(&toolList{defs: c.Tools, more: c.More})
	return true
}

// keep stores a list for the next start of the program.
func (e *entry) keep(ctx context.Context, cl *client.Client, l toolList) {
	names := slices.Sorted(maps.Keys(cl.Init().Capabilities))
	e.mu.Lock()
	e.capabilities = names
	e.mu.Unlock()
	key := e.key(ctx)
	if key == "" {
		return
	}
	b, err := json.Marshal(cachedList{Version: 1, Key: key, Tools: l.defs, More: l.more, Capabilities: names})
	if err == nil {
		err = e.reg.lists.write(cacheName(key), b)
	}
	if err != nil {
		e.log.Warn("the list of tools could not be cached", "error", err)
	}
}

// acquire gives the shared sandbox and keeps it from being stopped as idle
// until release. It starts a server that is idle, and waits for that.
func (e *entry) acquire(ctx context.Context) (*client.Client, error) {
	for first := true; ; first = false {
		e.mu.Lock()
		if cl := e.live.Load(); cl != nil {
			e.users++
			e.mu.Unlock()
			return cl, nil
		}
		state, turn, waking := e.state, e.turn, e.waking
		e.mu.Unlock()
		switch {
		case state == StateIdle:
			select {
			case e.wanted <- struct{}{}:
			default:
			}
		case state != StateStarting || !waking:
			return nil, e.down()
		}
		if first {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, e.srv.StartTimeout)
			defer cancel()
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (e *entry) release() {
	e.mu.Lock()
	e.users--
	e.lastUse = time.Now()
	e.mu.Unlock()
}

// retire takes the shared sandbox out of use if nobody used it for IdleStop.
// Otherwise it says how long to wait.
func (e *entry) retire() (wait time.Duration, retired bool) {
	_, uris := e.reg.wanted(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.users > 0 || len(uris) > 0 {
		return e.srv.IdleStop, false
	}
	if wait = e.srv.IdleStop - time.Since(e.lastUse); wait > 0 {
		return wait, false
	}
	// Calls from now on wait for the next start, not for the end of this one.
	e.live.Store(nil)
	e.state, e.reason = StateIdle, errIdle()
	return 0, true
}

func errIdle() *Error { return errf(CodeServerDown, "the server is idle: a call starts it") }

// sleep waits until somebody wants the server. It is false when ctx ended.
func (e *entry) sleep(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-e.wanted:
	case <-e.retry:
	}
	e.mu.Lock()
	e.waking = true
	e.mu.Unlock()
	e.set(StateStarting, errf(CodeServerDown, "the server is being started"))
	return true
}
