//go:build linux

package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestCeilings: no caller gets more for one sandbox than the operator allows,
// whether it asks for it or for nothing.
func TestCeilings(t *testing.T) {
	most := sandbox.Limits{MemoryBytes: 64 << 20, CPUs: 0.5, PIDs: 32, TmpBytes: 8 << 20, FileBytes: 1 << 20}
	e := startEngine(t, func(c *Config) { c.Ceiling = most })
	image := withImage(t, e)
	p := dialRaw(t, e, true)
	for name, l := range map[string]sandbox.Limits{
		"memory": {MemoryBytes: most.MemoryBytes + 1}, "cpus": {CPUs: 0.501}, "pids": {PIDs: 33}, "tmp": {TmpBytes: most.TmpBytes + 1}, "file size": {FileBytes: most.FileBytes + 1},
	} {
		m := &startMsg{Spec: testSpec(image, "/bin/sleep", "600")}
		m.Spec.Limits = l
		p.must(2, m)
		if r := p.expect(2, kindError).(*errorMsg); r.Code != codeInvalid || !strings.Contains(r.Text, "over the engine's") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	p.must(2, &startMsg{Spec: testSpec(image, "/bin/sleep", "600")})
	p.expect(2, kindStarted)
	got := e.host.last().Spec.Limits
	got.Files, got.StopGrace = 0, 0
	if got != most {
		t.Errorf("by default it got %+v", got)
	}
}

// TestMemoryQuotas: the sum of what sandboxes may use is bounded, for each
// user and for all, and given back with each of them.
func TestMemoryQuotas(t *testing.T) {
	const mib = 1 << 20
	for name, q := range map[string]Quota{"user": {UserMemoryBytes: 100 * mib}, "all": {MemoryBytes: 100 * mib}} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, func(c *Config) { c.Quota = q })
			image := withImage(t, e)
			p := dialRaw(t, e, true)
			ask := func(id uint32, bytes int64) {
				m := &startMsg{Spec: testSpec(image, "/bin/sleep", "600")}
				m.Spec.Limits.MemoryBytes = bytes
				p.must(id, m)
			}
			refused := func(id uint32) {
				t.Helper()
				if r := p.expect(id, kindError).(*errorMsg); r.Code != codeQuota || !strings.Contains(r.Text, "of 100 MiB") {
					t.Errorf("%+v", r)
				}
			}
			ask(1, 0) // the default is a gibibyte
			refused(1)
			ask(2, 60*mib)
			p.expect(2, kindStarted)
			ask(3, 41*mib)
			refused(3)
			ask(4, 40*mib)
			p.expect(4, kindStarted)
			p.must(5, &stopMsg{Target: 2, Kill: true})
			for range 2 { // done and the end, in either order
				if _, _, _, err := p.recv(); err != nil {
					t.Fatal(err)
				}
			}
			e.host.await(t, "the first to go", func() bool { return len(e.host.boxes) == 1 })
			ask(6, 60*mib)
			p.expect(6, kindStarted)
		})
	}
}

// TestBoundsAreChecked: what bounds nothing, or all, is no configuration.
func TestBoundsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"sandboxes": func(c *Config) { c.Quota.Sandboxes = -1 }, "memory": func(c *Config) { c.Quota.MemoryBytes = -1 },
		"a user's memory": func(c *Config) { c.Quota.UserMemoryBytes = -1 }, "ceiling": func(c *Config) { c.Ceiling.MemoryBytes = -1 },
		"a ceiling under all": func(c *Config) { c.Ceiling.MemoryBytes = 1 << 20 },
	} {
		c := testConfig(publicDir(t) + "/engine.sock")
		change(&c)
		if s, err := NewServer(c); err == nil {
			t.Errorf("%s: accepted", name)
			_ = s.Close(t.Context())
		}
	}
	if _, err := NewServer(testConfig("/proc/none/engine.sock")); err == nil || errors.Is(err, ErrRunning) {
		t.Errorf("a socket that cannot be: %v", err)
	}
}
