//go:build linux

package container

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// TestAKitServesOneBox: what is made ahead is given away once, ids and
// namespaces alike, and nothing of it outlives the host.
func TestAKitServesOneBox(t *testing.T) {
	need(t)
	ids := newIDPool(defaultIDBase, 4)
	s := newKits(ids, true)
	before := open(t)
	seen := map[uint32]bool{}
	var spaces []os.FileInfo
	for range 3 {
		s.refill(true)
		s.refill(true) // one is enough
		s.await(t, true)
		if s.ready[true] == nil || s.ready[false] != nil {
			t.Fatalf("ready: %v", s.ready)
		}
		k, err := s.take(true)
		if err != nil {
			t.Fatal(err)
		}
		if s.ready[true] != nil || seen[k.ids] {
			t.Fatalf("ids %d are ready still, or were given before", k.ids)
		}
		seen[k.ids] = true
		for _, f := range []*os.File{k.idmap, k.net.guest, k.net.gateway} {
			fi, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			for _, other := range spaces {
				if os.SameFile(fi, other) {
					t.Errorf("%s is an earlier kit's too", f.Name())
				}
			}
			spaces = append(spaces, fi)
		}
		defer func() {
			if err := s.discard(k); err != nil {
				t.Error(err)
			}
		}()
	}
	s.refill(true)
	s.refill(false) // the close below finds it in the making
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s.refill(true)
	s.wg.Wait()
	if len(s.ready) != 0 {
		t.Errorf("after close: %v", s.ready)
	}
	free := 0
	for _, used := range ids.used {
		if !used {
			free++
		}
	}
	if free != 1 {
		t.Errorf("%d of 4 ranges are free, beside the 3 that were taken", free)
	}
	if now := open(t); now < before {
		t.Errorf("%d descriptors, before %d", now, before)
	}
}

// await waits until a kit of the kind is ready.
func (s *kits) await(t *testing.T, gateway bool) {
	t.Helper()
	for range 1000 {
		s.mu.Lock()
		k := s.ready[gateway]
		s.mu.Unlock()
		if k != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no kit was made")
}

// open counts this process's descriptors.
func open(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// TestAKitIsNotInTheWay: ids that a kit of the other kind holds are had by
// whoever needs them.
func TestAKitIsNotInTheWay(t *testing.T) {
	need(t)
	s := newKits(newIDPool(defaultIDBase, 1), true)
	s.refill(true)
	s.await(t, true)
	k, err := s.take(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.take(true); !errors.Is(err, errNoIDs) {
		t.Errorf("one range was given twice: %v", err)
	}
	if err := errors.Join(s.discard(k), s.close()); err != nil {
		t.Error(err)
	}
}

// TestIDsAreKeptWithWhatIsLeft: what others may have next is given back only
// when all of the box is gone.
func TestIDsAreKeptWithWhatIsLeft(t *testing.T) {
	var c cleanup
	stuck, given := true, 0
	c.release("ids", func(context.Context) error { given++; return nil })
	c.add("folder", func(context.Context) error { return nil })
	c.add("cgroup", func(context.Context) error {
		if stuck {
			return errors.New("a process is left")
		}
		return nil
	})
	if err := c.run(t.Context()); err == nil || given != 0 {
		t.Errorf("with a process left: %v, given %d times", err, given)
	}
	stuck = false
	if err := c.run(t.Context()); err != nil || given != 1 || len(c.steps) != 0 {
		t.Errorf("then: %v, given %d times, %d steps left", err, given, len(c.steps))
	}
}
