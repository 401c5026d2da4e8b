package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
)

// liveEgresses are those of one server's sandboxes that run, so that a policy
// can change under them.
type liveEgresses struct {
	mu  sync.Mutex
	all map[*netguard.Egress]struct{}
}

// liveEgress leaves the set when its sandbox closes it.
type liveEgress struct {
	*netguard.Egress
	set *liveEgresses
}

func (e liveEgress) Close() error {
	e.set.mu.Lock()
	delete(e.set.all, e.Egress)
	e.set.mu.Unlock()
	return e.Egress.Close()
}

// add puts an egress into the set; policy is asked for inside, so that none
// starts under a policy that has just been replaced.
func (s *liveEgresses) add(guard *netguard.Guard, subject netguard.Subject, policy func() *netguard.Policy) liveEgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := guard.For(subject, policy())
	if s.all == nil {
		s.all = map[*netguard.Egress]struct{}{}
	}
	s.all[e] = struct{}{}
	return liveEgress{e, s}
}

// setPolicy gives every running sandbox the policy; connections that it forbids end.
func (s *liveEgresses) setPolicy(swap func(), p *netguard.Policy) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	swap()
	for e := range s.all {
		e.SetPolicy(p)
	}
	return len(s.all)
}

// reload gives the server another policy's egress from now on.
func (s *starter) reload(p *policies.Policy) error {
	var compiled *netguard.Policy
	if p.Egress != nil {
		var err error
		if compiled, err = netguard.Compile(*p.Egress); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	srv := *s.srv.policy
	srv.Egress = p.Egress
	s.srv.policy = &srv
	if s.ready == nil {
		return nil
	}
	s.ready.live.setPolicy(func() { s.ready.policy.Store(compiled) }, compiled)
	return nil
}

// hangups delivers SIGHUP from now on instead of ending the program.
func hangups() (hup chan os.Signal, stop func()) {
	hup = make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	return hup, func() { signal.Stop(hup) }
}

// reloads re-reads the config at each SIGHUP until ctx ends. A fault anywhere
// leaves every policy as it was.
func reloads(ctx context.Context, hup <-chan os.Signal, starters map[string]*starter, load func() (*config.Config, error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		cfg, err := load()
		if err != nil {
			fmt.Fprintf(os.Stderr, "sandboxd: not reloaded, the old policies stay in force:\n%v\n", err)
			continue
		}
		n := 0
		for _, s := range cfg.Servers {
			st := starters[s.ID]
			if st == nil {
				continue
			}
			if err := st.reload(s.Policy); err != nil {
				fmt.Fprintf(os.Stderr, "sandboxd: policy of %s not reloaded: %v\n", s.ID, err)
				continue
			}
			n++
		}
		fmt.Fprintf(os.Stderr, "sandboxd: reloaded the egress policies of %d server(s); other changes need a restart\n", n)
	}
}
