//go:build linux

package container

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keeperBound is how long a keeper may take to end what its engine left.
	keeperBound = 10 * time.Second
	// keeperCalm is how long nothing more may come of a start that was under
	// way before a keeper ends.
	keeperCalm = 250 * time.Millisecond
	keeperTick = 10 * time.Millisecond
)

var boxRE = regexp.MustCompile(`^sb-[a-z0-9-]+-[0-9a-f]{16}$`)

// KeeperMain is the whole life of a keeper's process, where this is one, and
// does not return then. A program that sets Config.Keeper calls it first.
func KeeperMain() {
	if len(os.Args) != 2 || os.Args[0] != keeperName || !instanceRE.MatchString(os.Args[1]) {
		return
	}
	// It ends when its engine has; whoever ends both by a signal means the
	// engine.
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	os.Exit(keep(os.Stdin, os.Args[1]))
}

// keep follows which boxes there are until the engine is gone, and ends those
// that are left. What is no box's name it passes over: nothing else can come
// from an engine.
func keep(from io.Reader, instance string) int {
	boxes := map[string]bool{}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || !boxRE.MatchString(line[1:]) {
			continue
		}
		switch line[0] {
		case '+':
			boxes[line[1:]] = true
		case '-':
			delete(boxes, line[1:])
		}
	}
	if len(boxes) == 0 {
		return 0
	}
	if err := endBoxes(instance, boxes); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd-keeper:", err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "sandboxd-keeper: the engine is gone; ended the processes of %d sandboxes\n", len(boxes))
	return 0
}

// endBoxes kills every process of the boxes' cgroups, until for a while none
// is left or comes.
func endBoxes(instance string, boxes map[string]bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), keeperBound)
	defer cancel()
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	calm := time.Now()
	for time.Since(calm) < keeperCalm {
		for id := range boxes {
			for _, dir := range hierarchies(cgroupPath(instance, id)) {
				if busyGroup(dir) {
					calm = time.Now()
				}
				if err := signalIn(dir, unix.SIGKILL); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sandboxes are left after %s: start the engine, which removes them", keeperBound)
		case <-tick.C:
		}
	}
	return nil
}

// busyGroup reports whether a cgroup, or one below it, has a process.
func busyGroup(dir string) bool {
	if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && len(b) > 0 { //nolint:gosec // names are checked against boxRE
		return true
	}
	below, err := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	if err != nil {
		return false // only a malformed pattern fails
	}
	for _, f := range below {
		if busyGroup(filepath.Dir(f)) {
			return true
		}
	}
	return false
}
