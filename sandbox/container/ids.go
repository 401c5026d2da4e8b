//go:build linux

package container

import (
	"errors"
	"sync"
)

var errNoIDs = errors.New("container: every user-id range is in use: end sandboxes, or give the engine more ranges")

// idPool hands out disjoint ranges of host ids, so that no two sandboxes, and
// no sandbox and the host, share an owner of files or processes.
type idPool struct {
	mu   sync.Mutex
	base uint32
	used []bool
	next int
}

func newIDPool(base, count uint32) *idPool {
	return &idPool{base: base, used: make([]bool, count)}
}

// take returns the first id of a free range. It goes round rather than
// reusing the last one freed, so that a stale process or file of an older
// sandbox does not meet its successor's ids at once.
func (p *idPool) take() (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.used {
		n := (p.next + i) % len(p.used)
		if !p.used[n] {
			p.used[n] = true
			p.next = n + 1
			return p.base + uint32(n)*idRange, nil
		}
	}
	return 0, errNoIDs
}

func (p *idPool) give(first uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[(first-p.base)/idRange] = false
}
