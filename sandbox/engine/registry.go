//go:build linux

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// reserve counts a sandbox against the quotas before it is started.
func (s *Server) reserve(a *account) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.boxes >= s.cfg.Quota.UserSandboxes {
		return fmt.Errorf("%w: this user has %d sandboxes running", ErrQuota, a.boxes)
	}
	total := 0
	for _, other := range s.accounts {
		total += other.boxes
	}
	if total >= s.cfg.Quota.Sandboxes {
		return fmt.Errorf("%w: %d sandboxes are running", ErrQuota, total)
	}
	a.boxes++
	return nil
}

func (s *Server) release(a *account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.boxes--
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
