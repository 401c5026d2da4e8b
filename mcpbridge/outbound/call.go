package outbound

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// call is one run on behalf of a client. It implements Caller.
type call struct {
	t      *tool
	s      *session
	ctx    context.Context
	cancel context.CancelCauseFunc
	clock  *clock
	asks   chan *ask

	done    chan struct{} // closed when the run has ended; then:
	outputs json.RawMessage
	err     error

	mu    sync.Mutex
	about about // of the request that waits now
	steps steps
}

func (s *session) callTool(ctx context.Context, id, params []byte, a about) []byte {
	tool, args, err := s.p.find(params)
	if err != nil {
		return relay.ErrorLine(id, -32602, err.Error())
	}
	key := sha256.Sum256(append([]byte(tool.name+"\x00"), args...))
	if state, ok := relay.Member(params, "requestState"); ok && a.modern {
		k, ask, rerr := s.unpark(state.Of(params), key, params)
		if rerr != nil {
			return relay.ErrorLine(id, -32602, rerr.Error())
		}
		k.attach(a)
		ask.reply <- k.reply
		return s.await(ctx, k.call, id, key, a)
	}
	if err := tool.in.Validate(args); err != nil {
		return resultLine(id, textResult("invalid arguments: "+err.Error(), true, a))
	}
	c, ok := s.start(tool, args, a)
	if !ok {
		return relay.ErrorLine(id, -32000, "too many runs are under way: try again later")
	}
	return s.await(ctx, c, id, key, a)
}

// find reads a call's tool and arguments.
func (p *Publisher) find(params []byte) (*tool, []byte, error) {
	var name string
	args, twice := []byte(`{}`), false
	seen := map[string]bool{}
	err := relay.Members(params, func(k string, v relay.Span) bool {
		twice = twice || seen[k]
		seen[k] = true
		switch k {
		case "name":
			twice = json.Unmarshal(v.Of(params), &name) != nil || twice
		case "arguments":
			args = v.Of(params)
		}
		return true
	})
	if err != nil || twice {
		return nil, nil, errors.New("params must be an object with a name and no member twice")
	}
	t := p.now().tools[name]
	if t == nil {
		return nil, nil, fmt.Errorf("unknown tool %q", relay.Cut([]byte(name), 80))
	}
	return t, args, nil
}

// start starts a run, unless too many are under way.
func (s *session) start(t *tool, args []byte, a about) (*call, bool) {
	select {
	case s.p.calls <- struct{}{}:
	default:
		return nil, false
	}
	c := &call{t: t, s: s, asks: make(chan *ask), done: make(chan struct{}), about: a}
	c.steps.limit = rate.NewLimiter(10, 20)
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	c.clock = newClock(t.Timeout, func() { c.cancel(timeoutError{t.Timeout}) })
	began := time.Now()
	s.wg.Go(func() {
		c.outputs, c.err = t.Runner.Run(c.ctx, args, c)
		c.clock.stop()
		close(c.done)
		<-s.p.calls
		s.p.cfg.Logger.Info("a workflow's run ended", "workflow", t.ID, "ok", c.err == nil, "ms", time.Since(began).Milliseconds())
	})
	return c, true
}

// await answers a request when its run has ended or, in the revision without
// sessions, when the run asks something: the client comes again then.
func (s *session) await(ctx context.Context, c *call, id []byte, key [32]byte, a about) []byte {
	for {
		select {
		case <-c.done:
			c.lastStep()
			answer := s.outcome(c, id, a)
			c.cancel(nil)
			return answer
		case q := <-c.asks:
			switch {
			case !q.possible(a.able):
				q.reply <- reply{err: ErrCannotAsk}
			case a.modern:
				if line := s.park(c, q, id, key); line != nil {
					return line
				}
				q.reply <- reply{err: errors.New("too many questions wait for an answer")}
			default:
				q.reply <- s.elicit(ctx, c, q)
			}
		case <-c.ctx.Done():
			// The run was told to end. Who waits need not wait for it.
			var late timeoutError
			if errors.As(c.cause(), &late) {
				return resultLine(id, textResult(late.Error(), true, a))
			}
			return relay.ErrorLine(id, -32000, c.cause().Error())
		case <-ctx.Done():
			c.cancel(context.Cause(ctx))
			return relay.ErrorLine(id, -32000, context.Cause(ctx).Error())
		}
	}
}

// cause says why the run was told to end, or is nil.
func (c *call) cause() error { return context.Cause(c.ctx) }

func (c *call) attach(a about) {
	c.mu.Lock()
	c.about = a
	c.mu.Unlock()
}

// steps is what a client was told of a run's progress.
type steps struct {
	limit *rate.Limiter
	last  float64
	held  []byte // the newest step that came too soon after others
}

// Progress implements Caller.
func (c *call) Progress(p Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Done == 0 {
		p.Done = math.Floor(c.steps.last) + 1
	}
	if c.about.token == nil || c.ctx.Err() != nil || !(p.Done > c.steps.last) || math.IsInf(p.Done, 0) {
		return
	}
	c.steps.last = p.Done
	params := map[string]any{"progressToken": json.RawMessage(c.about.token), "progress": p.Done}
	if p.Total > 0 && !math.IsInf(p.Total, 0) {
		params["total"] = p.Total
	}
	if p.Message != "" {
		params["message"] = relay.Cut([]byte(p.Message), maxMessage)
	}
	line := encoded(map[string]any{"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
	if !c.steps.limit.Allow() {
		c.steps.held = line
		return
	}
	c.steps.held = nil
	c.s.send(line)
}

// lastStep sends what was held back, before the result.
func (c *call) lastStep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steps.held != nil {
		c.s.send(c.steps.held)
		c.steps.held = nil
	}
}

// clock measures a run's own time: it stands still while a person is asked.
type clock struct {
	mu     sync.Mutex
	timer  *time.Timer
	left   time.Duration
	began  time.Time
	paused int
	over   bool
}

func newClock(d time.Duration, ring func()) *clock {
	return &clock{timer: time.AfterFunc(d, ring), left: d, began: time.Now()}
}

func (k *clock) pause() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.paused++; k.paused == 1 && k.timer.Stop() {
		k.left -= time.Since(k.began)
	}
}

func (k *clock) resume() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.paused--; k.paused == 0 && !k.over {
		k.began = time.Now()
		k.timer.Reset(max(k.left, 0))
	}
}

func (k *clock) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.timer.Stop()
}
