//go:build linux

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// reserve counts a sandbox, with so many bytes of memory, against the quotas
// before it is started.
func (s *Server) reserve(a *account, memory int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.boxes >= s.cfg.Quota.UserSandboxes {
		return fmt.Errorf("%w: this user has %d sandboxes running", ErrQuota, a.boxes)
	}
	total, used := 0, int64(0)
	for _, other := range s.accounts {
		total += other.boxes
		used += other.memory
	}
	if total >= s.cfg.Quota.Sandboxes {
		return fmt.Errorf("%w: %d sandboxes are running", ErrQuota, total)
	}
	q := s.cfg.Quota
	if q.UserMemoryBytes > 0 && memory > q.UserMemoryBytes-a.memory {
		return fmt.Errorf("%w: this user's sandboxes may use %d of %d MiB already, and this one %d", ErrQuota, a.memory>>20, q.UserMemoryBytes>>20, memory>>20)
	}
	if q.MemoryBytes > 0 && memory > q.MemoryBytes-used {
		return fmt.Errorf("%w: all sandboxes may use %d of %d MiB already, and this one %d", ErrQuota, used>>20, q.MemoryBytes>>20, memory>>20)
	}
	a.boxes++
	a.memory += memory
	return nil
}

func (s *Server) release(a *account, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.boxes--
	a.memory -= memory
}

// register makes a running sandbox visible to list.
func (s *Server) register(j *job, e Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[j] = e
}

func (s *Server) unregister(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.boxes, j)
}

// list gives one page of the sandboxes that uid may see, in the order of
// their ids: its own, and for root all of them.
func (s *Server) list(uid uint32, after string) *listedMsg {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &listedMsg{}
	for j, e := range s.boxes {
		if e.ID > after && (uid == 0 || e.Owner == uid) {
			e.Age = time.Since(j.since).Round(time.Millisecond)
			m.Entries = append(m.Entries, e)
		}
	}
	slices.SortFunc(m.Entries, func(a, b Entry) int { return cmp.Compare(a.ID, b.ID) })
	if len(m.Entries) > maxList {
		m.Entries, m.More = m.Entries[:maxList], true
	}
	return m
}
