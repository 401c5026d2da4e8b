package pool

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guest is a sandbox without anything in it.
type guest struct {
	id     string
	once   sync.Once
	over   chan struct{}
	closed chan struct{}
}

func newGuest(id string) *guest {
	return &guest{id: id, over: make(chan struct{}), closed: make(chan struct{})}
}

func (g *guest) ID() string           { return g.id }
func (g *guest) Stdio() sandbox.Stdio { panic("a pool speaks to nobody") }
func (g *guest) exit()                { g.once.Do(func() { close(g.over) }) }

func (g *guest) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-g.over:
		return sandbox.Exit{Cause: sandbox.Exited}, nil
	default:
	}
	select {
	case <-g.over:
		return sandbox.Exit{Cause: sandbox.Exited}, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (g *guest) Close(context.Context) error {
	g.exit()
	close(g.closed) // panics where it is closed twice
	return nil
}

func (g *guest) wasClosed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// starts counts and remembers what a pool starts.
type starts struct {
	mu   sync.Mutex
	all  []*guest
	fail error
}

func (s *starts) start(context.Context) (sandbox.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		s.all = append(s.all, nil)
		return nil, s.fail
	}
	g := newGuest(strconv.Itoa(len(s.all)))
	s.all = append(s.all, g)
	return g, nil
}

func (s *starts) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

func newPool(t *testing.T, size int, s *starts) *Pool[sandbox.Sandbox] {
	t.Helper()
	p, err := New(Config[sandbox.Sandbox]{Size: size, Start: s.start, StartTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEachIsTakenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s starts
		p := newPool(t, 2, &s)
		p.Fill()
		p.Fill()
		synctest.Wait()
		if p.Ready() != 2 || s.count() != 2 {
			t.Fatalf("%d ready of %d started, want 2", p.Ready(), s.count())
		}
		seen := map[string]bool{}
		for range 5 { // more than wait: the rest are started for their takers
			sb, err := p.Take(t.Context())
			if err != nil || seen[sb.ID()] {
				t.Fatalf("took %v, %v; before: %v", sb, err, seen)
			}
			seen[sb.ID()] = true
		}
		time.Sleep(2 * refillPause)
		synctest.Wait()
		if p.Ready() != 2 || s.count() != 7 {
			t.Errorf("%d ready of %d started after a refill, want 2 of 7", p.Ready(), s.count())
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, g := range s.all {
			if g.wasClosed() == seen[g.id] {
				t.Errorf("sandbox %s: closed %t, taken %t", g.id, g.wasClosed(), seen[g.id])
			}
		}
		if _, err := p.Take(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestNoneThatEndedIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s starts
		p := newPool(t, 1, &s)
		p.Fill()
		synctest.Wait()
		s.all[0].exit()
		synctest.Wait()
		sb, err := p.Take(t.Context())
		if err != nil || sb.ID() == "0" {
			t.Fatalf("took %v, %v", sb, err)
		}
		if !s.all[0].wasClosed() {
			t.Error("the one that ended was not closed")
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFailuresArePacedAndForgiven: what always fails costs little, and a start
// that works again fills the pool.
func TestFailuresArePacedAndForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := starts{fail: errors.New("no image")}
		p := newPool(t, 1, &s)
		p.Fill()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := s.count(); n < 5 || n > 20 {
			t.Errorf("%d starts in ten minutes", n)
		}
		if _, err := p.Take(t.Context()); !errors.Is(err, s.fail) {
			t.Errorf("took from an empty pool: %v", err)
		}
		s.mu.Lock()
		s.fail = nil
		s.mu.Unlock()
		time.Sleep(lastBackoff)
		synctest.Wait()
		if p.Ready() != 1 {
			t.Error("nothing is ready though starts work again")
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAnIdlePoolCostsNothing: what nobody takes ends, and the next who asks
// has the pool filled again.
func TestAnIdlePoolCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s starts
		p, err := New(Config[sandbox.Sandbox]{Size: 2, Start: s.start, StartTimeout: time.Minute, Idle: 10 * time.Minute, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		p.Fill()
		take := func() sandbox.Sandbox {
			t.Helper()
			sb, err := p.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return sb
		}
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		first := take()
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if p.Ready() != 2 || s.count() != 3 {
			t.Fatalf("%d ready of %d started, though one was taken meanwhile", p.Ready(), s.count())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if p.Ready() != 0 || s.count() != 3 {
			t.Fatalf("%d ready of %d started when idle", p.Ready(), s.count())
		}
		for _, g := range s.all {
			if g.wasClosed() == (g.id == first.ID()) {
				t.Errorf("sandbox %s: closed %t", g.id, g.wasClosed())
			}
		}
		time.Sleep(24 * time.Hour)
		take()
		time.Sleep(2 * refillPause)
		synctest.Wait()
		if p.Ready() != 2 || s.count() != 6 {
			t.Errorf("%d ready of %d started after the next was taken", p.Ready(), s.count())
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseWaitsForAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest("late")
		p, err := New(Config[sandbox.Sandbox]{Size: 1, StartTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler), Start: func(ctx context.Context) (sandbox.Sandbox, error) {
			<-ctx.Done() // and starts all the same
			time.Sleep(time.Second)
			return g, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		p.Fill()
		synctest.Wait()
		if err := p.Close(t.Context()); err != nil || !g.wasClosed() {
			t.Errorf("Close: %v, the late sandbox closed: %t", err, g.wasClosed())
		}
	})
}

func TestTakersAndEndsRace(t *testing.T) {
	var s starts
	p := newPool(t, Most, &s)
	p.Fill()
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := map[string]bool{}
	for range 8 {
		wg.Go(func() {
			for range 50 {
				sb, err := p.Take(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if taken[sb.ID()] {
					t.Errorf("sandbox %s was taken twice", sb.ID())
				}
				taken[sb.ID()] = true
				mu.Unlock()
				if err := sb.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, g := range s.all {
		if !g.wasClosed() {
			t.Errorf("sandbox %s is left", g.id)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	start := (&starts{}).start
	log := slog.New(slog.DiscardHandler)
	for name, cfg := range map[string]Config[sandbox.Sandbox]{
		"none": {}, "too many": {Size: Most + 1, Start: start, Logger: log, StartTimeout: 1},
		"negative": {Size: -1, Start: start, Logger: log, StartTimeout: 1},
		"no start": {Size: 1, Logger: log, StartTimeout: 1}, "no bound": {Size: 1, Start: start, Logger: log},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
