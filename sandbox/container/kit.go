//go:build linux

package container

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
)

// kit is what a box needs that does not depend on what it is to run: a range
// of ids with a user namespace that maps it, and the network's namespaces.
// None of it has a name on the host, so that it goes with this process.
type kit struct {
	ids   uint32   // the first
	idmap *os.File // nil once it has been used
	net   *network
	taken chan struct{} // closed when it is
}

// kits makes kits, and where ahead is set keeps one of each kind that was
// asked for ready, for the next box of the kind. A kit serves one box, and does
// not wait for it long: an engine at rest holds nothing.
type kits struct {
	ids   *idPool
	ahead bool
	quit  chan struct{} // closed by close

	mu     sync.Mutex
	closed bool
	ready  map[bool]*kit // by whether there is a gateway
	making map[bool]bool
	errs   []error // of kits that nobody took
	wg     sync.WaitGroup
}

func newKits(ids *idPool, ahead bool) *kits {
	return &kits{ids: ids, ahead: ahead, quit: make(chan struct{}), ready: map[bool]*kit{}, making: map[bool]bool{}}
}

// take gives the kit that is ready, or makes one. It is the caller's from then
// on, who gives the ids back and closes the network.
func (s *kits) take(gateway bool) (*kit, error) {
	s.mu.Lock()
	k := s.ready[gateway]
	delete(s.ready, gateway)
	s.mu.Unlock()
	if k != nil {
		close(k.taken)
		return k, nil
	}
	k, err := s.make(gateway)
	if !errors.Is(err, errNoIDs) {
		return k, err
	}
	// One of the other kind may hold the last ids, and nobody waits for it.
	s.mu.Lock()
	spare := s.ready[!gateway]
	delete(s.ready, !gateway)
	s.mu.Unlock()
	if spare == nil {
		return nil, err
	}
	close(spare.taken)
	if err := s.discard(spare); err != nil {
		return nil, err
	}
	return s.make(gateway)
}

const (
	// refillPause lets the box that took a kit get going before the making of
	// the next one competes with it.
	refillPause = 300 * time.Millisecond
	// kitLife is how long a kit waits to be taken.
	kitLife = 20 * time.Second
)

// refill makes the next kit of a kind in the background, if there is none.
// Should that fail, the next box makes its own, or says why not.
func (s *kits) refill(gateway bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ahead || s.closed || s.making[gateway] || s.ready[gateway] != nil {
		return
	}
	s.making[gateway] = true
	s.wg.Go(func() {
		select {
		case <-time.After(refillPause):
		case <-s.quit:
			return
		}
		if k := s.add(gateway); k != nil {
			s.expire(gateway, k)
		}
	})
}

// add makes a kit and has it ready.
func (s *kits) add(gateway bool) *kit {
	k, err := s.make(gateway)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making[gateway] = false
	if err != nil {
		return nil
	}
	s.ready[gateway] = k
	return k
}

// expire lets go of a kit that nobody takes in time.
func (s *kits) expire(gateway bool, k *kit) {
	select {
	case <-k.taken:
		return
	case <-s.quit:
	case <-time.After(kitLife):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready[gateway] == k {
		delete(s.ready, gateway)
		if err := s.discard(k); err != nil {
			s.errs = append(s.errs, err)
		}
	}
}

func (s *kits) make(gateway bool) (*kit, error) {
	ids, err := s.ids.take()
	if err != nil {
		return nil, err
	}
	k := &kit{ids: ids, taken: make(chan struct{})}
	m := fmt.Sprintf("0:%d:%d", ids, idRange)
	if k.idmap, err = mount.GetUsernsFD(m, m); err != nil {
		return nil, errors.Join(fmt.Errorf("container: map ids: %w", err), s.discard(k))
	}
	if k.net, err = newNetwork(gateway); err != nil {
		return nil, errors.Join(fmt.Errorf("container: network: %w", err), s.discard(k))
	}
	return k, nil
}

// discard lets go of all that the kit holds.
func (s *kits) discard(k *kit) error {
	err := k.mapped()
	if k.net != nil {
		err = errors.Join(err, k.net.close())
	}
	s.ids.give(k.ids)
	return err
}

// mapped lets go of the user namespace: what is mounted by now holds it.
func (k *kit) mapped() error {
	f := k.idmap
	k.idmap = nil
	if f == nil {
		return nil
	}
	return f.Close()
}

// close waits for kits in the making, and lets go of those that are ready.
func (s *kits) close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.errs...)
}
