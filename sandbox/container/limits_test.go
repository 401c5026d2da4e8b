//go:build linux

package container

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestFileLimits: how many files a process has open, and how large each file
// gets in a folder of the host's, meet their limits in both tiers, and work
// beneath them.
func TestFileLimits(t *testing.T) {
	h := newHost(t)
	rows := newTable(t)
	dir := callerFolder(t)
	try := func(t *testing.T, tier sandbox.Isolation, l sandbox.Limits) (open, write answer) {
		req := request()
		byCaller(&req)
		l.StopGrace = req.Spec.Limits.StopGrace
		req.Spec.Isolation, req.Spec.Limits = tier, l
		req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, dir), Target: "/data", ReadWrite: true}}
		g := start(t, h, req)
		open = g.do("open", "200")
		write = g.do("fill", "/data/big", "3")
		g.must("cwd") // neither ended it
		return open, write
	}
	const many, large = "opening files without end", "a file without end in a mount"
	o, w := try(t, sandbox.Container, sandbox.Limits{})
	rows.add(many, "weakened", o.Err == "", o.Err)
	rows.add(large, "weakened", w.Err == "", w.Err)
	if o.Err != "" || w.Err != "" {
		t.Errorf("under high limits: %+v, %+v", o, w)
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		o, w := try(t, tier, sandbox.Limits{Files: 100, FileBytes: 1 << 20})
		rows.add(many, tier.String(), o.Err == "", fmt.Sprintf("%s after %s", o.Err, o.Out))
		rows.add(large, tier.String(), w.Err == "", w.Err)
		if o.Err != "too many open files" || w.Err != "file too large" {
			t.Errorf("under low limits: %+v, %+v", o, w)
		}
		if fi, err := os.Stat(filepath.Join(dir, "big")); err != nil || fi.Size() > 1<<20 {
			t.Errorf("the file: %v, %v", fi, err)
		}
	})
}

// TestPeaks: an exit says how much there was at most, also of what is gone
// again.
func TestPeaks(t *testing.T) {
	g := start(t, newHost(t), request())
	g.must("eat", "40")
	g.must("fork", "5")
	g.must("fill", "/tmp/x", "9")
	g.must("fill", guestHome+"/x", "4")
	g.send("exit", "3")
	e := g.exit()
	if e.Cause != sandbox.Exited || e.Code != 3 {
		t.Errorf("exit %+v", e)
	}
	if e.PeakTmpBytes < 13<<20 || e.PeakTmpBytes > 14<<20 || e.PeakMemoryBytes < 53<<20 || e.PeakPIDs < 7 {
		t.Errorf("it used at most %s", e.Use())
	}
}
