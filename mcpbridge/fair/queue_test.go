package fair

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func queue(t testing.TB, cfg Config) *Queue {
	t.Helper()
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestBoundsAreChecked(t *testing.T) {
	for _, cfg := range []Config{{}, {Places: -1}, {Places: 1, Waiting: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// TestCallersTakeTurns has one caller ask a hundred times before another asks
// once: the other is next all the same.
func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue(t, Config{Places: 1, Waiting: 200})
		if err := q.Enter(t.Context(), "greedy"); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		ask := func(who, what string) {
			wg.Go(func() {
				if err := q.Enter(t.Context(), who); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, what)
				mu.Unlock()
				q.Leave(who)
			})
			synctest.Wait()
		}
		for i := range 100 {
			ask("greedy", fmt.Sprint("greedy ", i))
		}
		ask("modest", "modest 0")
		ask("modest", "modest 1")
		q.Leave("greedy")
		wg.Wait()
		want := []string{"greedy 0", "modest 0", "greedy 1", "modest 1", "greedy 2", "greedy 3"}
		for i, w := range want {
			if order[i] != w {
				t.Fatalf("served in the order %q…, want %q…", order[:len(want)], want)
			}
		}
		if len(q.callers) != 0 || q.held != 0 || q.waiting != 0 || len(q.turns) != 0 {
			t.Errorf("left over: %d callers, %d held, %d waiting, %d turns", len(q.callers), q.held, q.waiting, len(q.turns))
		}
	})
}

// TestFullQueueRefusesWhoHasMost keeps a full queue open for a caller who is
// not the one that filled it.
func TestFullQueueRefusesWhoHasMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue(t, Config{Places: 1, Waiting: 4})
		if err := q.Enter(t.Context(), "greedy"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 8)
		for range 4 {
			go func() { errs <- q.Enter(ctx, "greedy") }()
		}
		synctest.Wait()
		if err := q.Enter(ctx, "greedy"); !errors.Is(err, ErrFull) {
			t.Errorf("the fifth of one caller: %v", err)
		}
		modest := make(chan error, 1)
		go func() { modest <- q.Enter(ctx, "modest") }()
		synctest.Wait()
		if err := <-errs; !errors.Is(err, ErrFull) {
			t.Errorf("the newest of who has most: %v", err)
		}
		if n := q.Waiting(); n != 4 {
			t.Errorf("%d wait", n)
		}
		cancel()
		for range 3 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if err := <-modest; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		q.Leave("greedy")
		if q.Waiting() != 0 || len(q.callers) != 0 {
			t.Errorf("%d wait, %d callers are known", q.Waiting(), len(q.callers))
		}
	})
}

// TestOwnPlace lets a caller in though others hold every place for ever.
func TestOwnPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue(t, Config{Places: 2, Waiting: 4, Own: true})
		for range 2 {
			if err := q.Enter(t.Context(), "stalled"); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.Enter(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Enter(ctx, "other"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second place of one's own: %v", err)
		}
		second := make(chan error, 1)
		go func() { second <- q.Enter(t.Context(), "other") }()
		synctest.Wait()
		q.Leave("other")
		if err := <-second; err != nil {
			t.Errorf("one who holds none now waits on: %v", err)
		}
	})
}

// TestPlacesAreNeverLostNorLent holds the bounds under random use with
// cancellations.
func TestPlacesAreNeverLostNorLent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{Places: rapid.IntRange(1, 4).Draw(rt, "places"), Waiting: rapid.IntRange(0, 6).Draw(rt, "waiting"), Own: rapid.Bool().Draw(rt, "own")}
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			q := queue(t, cfg)
			var wg sync.WaitGroup
			var mu sync.Mutex
			inside := map[int]int{}
			for i, who := range steps {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(who+1)*time.Millisecond)
				wg.Go(func() {
					defer cancel()
					if q.Enter(ctx, who) != nil {
						return
					}
					mu.Lock()
					inside[who]++
					all := 0
					for _, n := range inside {
						all += n
					}
					limit := cfg.Places
					if cfg.Own {
						limit += len(inside)
					}
					if all > limit {
						t.Errorf("%d places are held of %d", all, limit)
					}
					mu.Unlock()
					time.Sleep(time.Duration(i%3) * time.Millisecond) // in the bubble's time
					mu.Lock()
					if inside[who]--; inside[who] == 0 {
						delete(inside, who)
					}
					mu.Unlock()
					q.Leave(who)
				})
			}
			wg.Wait()
			if q.held != 0 || q.waiting != 0 || len(q.callers) != 0 || len(q.turns) != 0 {
				t.Errorf("left over: %d held, %d waiting, %d callers, %d turns", q.held, q.waiting, len(q.callers), len(q.turns))
			}
		})
	})
}
