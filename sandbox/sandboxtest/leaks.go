package sandboxtest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// stock is what of this process a sandbox could leave behind.
type stock struct {
	goroutines  int
	descriptors []string // by what they lead to, without numbers
}

func takeStock(t *testing.T) stock {
	t.Helper()
	runtime.GC() // files that nobody holds are no leak
	s := stock{goroutines: runtime.NumGoroutine()}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return s // not on this system
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			s.descriptors = append(s.descriptors, strings.TrimRight(to, "0123456789]"))
		}
	}
	slices.Sort(s.descriptors)
	return s
}

// grown are the elements of b beyond those of a.
func grown(a, b []string) []string {
	a = slices.Clone(a)
	var out []string
	for _, x := range b {
		if i := slices.Index(a, x); i >= 0 {
			a = slices.Delete(a, i, i+1)
		} else {
			out = append(out, x)
		}
	}
	return out
}

// testLeavesNothing waits a little for what goes by itself, then holds the
// host to what it was.
func (s *suite) testLeavesNothing(t *testing.T, before stock) {
	var after stock
	var left []string
	for until := time.Now().Add(slack); ; time.Sleep(50 * time.Millisecond) {
		after = takeStock(t)
		left = s.left(t)
		if after.goroutines <= before.goroutines && len(grown(before.descriptors, after.descriptors)) == 0 && len(left) == 0 {
			t.Logf("%d sandboxes left nothing: %d goroutines and %d descriptors, before them %d and %d",
				len(s.ids), after.goroutines, len(after.descriptors), before.goroutines, len(before.descriptors))
			return
		}
		if time.Now().After(until) {
			break
		}
	}
	if after.goroutines > before.goroutines {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		t.Errorf("%d goroutines, before %d:\n%s", after.goroutines, before.goroutines, stacks)
	}
	if more := grown(before.descriptors, after.descriptors); len(more) > 0 {
		t.Errorf("descriptors: %q", more)
	}
	if len(left) > 0 {
		t.Errorf("left on the host: %q", left)
	}
}

// left looks for processes, mounts and cgroups that bear a sandbox's name.
func (s *suite) left(t *testing.T) []string {
	t.Helper()
	s.mu.Lock()
	names := append(slices.Clone(s.ids), s.marker)
	s.mu.Unlock()
	out := processesWith(t, names...)
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.Lines(string(mounts)) {
			if containsAny(line, names) {
				out = append(out, "mount "+line)
			}
		}
	}
	const depth = 6 // of folders under /sys/fs/cgroup
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // gone meanwhile, or none at all
		case !d.IsDir():
			return nil
		case containsAny(d.Name(), names):
			out = append(out, "cgroup "+p)
		case strings.Count(p, "/") > depth:
			return fs.SkipDir
		}
		return nil
	})
	if s.cfg.Left != nil {
		out = append(out, s.cfg.Left(t)...)
	}
	return out
}

func containsAny(s string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(s, n) })
}

// processesWith are the host's processes whose command line or cgroup holds
// one of the names.
func processesWith(t *testing.T, names ...string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range dirs {
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil {
			continue // gone meanwhile
		}
		group, _ := os.ReadFile(filepath.Join(d, "cgroup")) // likewise
		if text := string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))); containsAny(text+string(group), names) {
			out = append(out, "process "+filepath.Base(d)+" "+text)
		}
	}
	return out
}
