//go:build linux

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// host is the Host on containerd.
type host struct {
	cfg    Config
	cl     *client.Client
	kits   *kits
	lock   *os.File // flock on StateDir, for as long as the Host lives
	labels map[string]string
	idRE   *regexp.Regexp // finds the id of a box of this instance
	keeper *keeper        // nil where Config.Keeper is false
	// loosen is nil but in tests, which weaken a spec to show that an attack
	// works where nothing stops it.
	loosen func(*specs.Spec)

	unpacking sync.Mutex

	mu       sync.Mutex
	closed   bool
	boxes    map[string]*box
	layers   map[string]layers    // by the image's digest
	starting map[string]bool      // boxes, and imports by their leases
	used     map[string]time.Time // images, by name, since the last sweep
	starts   sync.WaitGroup       // as many as starting holds

	stopSweeps context.CancelFunc
	sweeping   sync.WaitGroup
}

var _ Host = (*host)(nil)

// New connects to containerd and takes possession of Config.StateDir; it fails
// if another Host has it. It removes nothing: call Collect for that.
func New(cfg Config) (Host, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	lock, err := claim(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	h := &host{
		cfg: cfg, lock: lock, kits: newKits(newIDPool(cfg.IDBase, cfg.IDCount), cfg.Ahead),
		labels: map[string]string{labelInstance: cfg.Instance},
		idRE:   regexp.MustCompile("sb-" + cfg.Instance + "-[0-9a-f]{16}"),
		boxes:  map[string]*box{}, starting: map[string]bool{}, used: map[string]time.Time{}, layers: map[string]layers{},
	}
	if err := h.writeStatic(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if cfg.Keeper {
		if h.keeper, err = startKeeper(cfg); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
	}
	h.cl, err = client.New(cfg.Address, client.WithDefaultNamespace(cfg.Namespace))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container: connect to containerd at %s: %w", cfg.Address, err), h.keeper.close(), lock.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	h.stopSweeps = stop
	if cfg.KeepImages > 0 {
		h.sweeping.Go(func() { h.sweeps(ctx) })
	}
	return h, nil
}

const lockTries, lockPause = 50, 20 * time.Millisecond

// claim creates the state folder and locks it.
func claim(dir string) (*os.File, error) {
	for _, d := range []string{dir, filepath.Join(dir, "boxes"), filepath.Join(dir, "etc"), filepath.Join(dir, "bin")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("container: state folder: %w", err)
		}
	}
	// A child that a killed engine was just making holds the lock on for a
	// moment, until it is gone too.
	lock, err := lockFile(filepath.Join(dir, "lock"), lockTries)
	if err != nil {
		return nil, fmt.Errorf("container: state folder %s is in use by another engine: %w", dir, err)
	}
	return lock, nil
}

// lockFile opens a file and locks it, after so many tries.
func lockFile(name string, tries int) (*os.File, error) {
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for range tries {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return lock, nil
		}
		time.Sleep(lockPause)
	}
	return nil, errors.Join(err, lock.Close())
}

// writeStatic writes what every box shares: the two files of /etc and the
// runtimes' entry scripts.
func (h *host) writeStatic() error {
	files := map[string]struct {
		text string
		mode os.FileMode
	}{
		"etc/resolv.conf": {"nameserver " + gatewayV4.Addr().String() + "\noptions timeout:5 attempts:2\n", 0o644},
		"etc/hosts":       {"127.0.0.1 localhost\n::1 localhost\n127.0.0.1 " + hostname + "\n", 0o644},
	}
	// The paths go into a shell script, and the folder's into mount options.
	if strings.ContainsAny(h.cfg.StateDir+h.cfg.Runc+h.cfg.Runsc, "'\n\\,:") {
		return errors.New("container: a path holds a quote, comma, colon, backslash or line break")
	}
	if h.cfg.Runc != "" {
		files["bin/runc"] = struct {
			text string
			mode os.FileMode
		}{entryScript(h.cfg.Runc, "", h.boxesDir()), 0o700}
	}
	if h.cfg.Runsc != "" {
		files["bin/runsc"] = struct {
			text string
			mode os.FileMode
		}{entryScript(h.cfg.Runsc, runscFlags, h.boxesDir()), 0o700}
	}
	for name, f := range files {
		p := filepath.Join(h.cfg.StateDir, name)
		// Replaced by rename, since a script may be running from the old one.
		if err := os.WriteFile(p+".new", []byte(f.text), f.mode); err != nil {
			return fmt.Errorf("container: state folder: %w", err)
		}
		if err := os.Rename(p+".new", p); err != nil {
			return fmt.Errorf("container: state folder: %w", err)
		}
	}
	return nil
}

// entryScript is what the shim runs in a runtime's place. It connects a new
// container's stdio to the box's fifos, so that bytes go straight between the
// guest and the caller and the shim copies none of them, and it adds the
// flags that the runc shim has no option for.
//
// All that a box needs is there before it is created, so that nothing is to be
// done between that and its start: one run of the runtime does both, and the
// guest gets going while the shim and containerd take note.
func entryScript(runtime, flags, boxes string) string {
	return fmt.Sprintf(`#!/bin/sh
# Written by sandboxd; replaced at each start.
verb=
for id; do
	case $id in create | start) verb=$id ;; esac
done
case $verb in
create)
	d='%[3]s'/"$id"
	n=$#
	for a; do
		case $a in create) set -- "$@" run --detach ;; *) set -- "$@" "$a" ;; esac
	done
	shift "$n"
	exec '%[1]s' %[2]s "$@" <"$d/in" >"$d/out" 2>"$d/err" ;;
start)
	exit 0 ;;
esac
exec '%[1]s' %[2]s "$@"
`, runtime, flags, boxes)
}

// runtimeDir is where the runtimes keep their own state.
func (h *host) runtimeDir() string      { return filepath.Join(h.cfg.StateDir, "run") }
func (h *host) runtimeState() string    { return filepath.Join(h.runtimeDir(), h.cfg.Namespace) }
func (h *host) boxesDir() string        { return filepath.Join(h.cfg.StateDir, "boxes") }
func (h *host) boxDir(id string) string { return filepath.Join(h.boxesDir(), id) }

// ctx adds containerd's namespace.
func (h *host) ctx(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, h.cfg.Namespace)
}

// Close stops every box, then lets go of containerd and the state folder.
func (h *host) Close(ctx context.Context) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.mu.Unlock()
	h.starts.Wait()
	h.stopSweeps()
	h.sweeping.Wait()

	h.mu.Lock()
	all := make([]*box, 0, len(h.boxes))
	for _, b := range h.boxes {
		all = append(all, b)
	}
	h.mu.Unlock()

	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, b := range all {
		wg.Go(func() { errs[i] = b.Stop(ctx) })
	}
	wg.Wait()
	return errors.Join(append(errs, h.kits.close(), h.keeper.close(), h.removeShared(), h.cl.Close(), h.lock.Close())...)
}

// nullNetns is the empty network namespace that runsc mounts for all boxes.
const nullNetns = "null-netns"

// removeShared removes what boxes share and no box removes: the engine's own
// cgroup, and an empty network namespace that runsc leaves mounted.
func (h *host) removeShared() error {
	var errs []error
	for _, dir := range hierarchies(cgroupPath(h.cfg.Instance, "")) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("container: remove %s: %w", dir, err))
		}
	}
	null := filepath.Join(h.runtimeState(), nullNetns)
	for {
		err := unix.Unmount(null, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not mounted (any more)
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("container: unmount %s: %w", null, err))...)
		}
	}
	return errors.Join(errs...)
}

// begin makes a box known before anything of it exists, so that Collect leaves
// it alone and Close waits for its start.
func (h *host) begin(id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return sandbox.ErrClosed
	}
	h.starting[id] = true
	h.starts.Add(1)
	return nil
}

// end ends what begin began; a box that started is one that Close stops.
func (h *host) end(id string, started *box) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.starting, id)
	if started != nil {
		h.boxes[id] = started
	}
	h.starts.Done()
}

func (h *host) forget(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, id)
}

// live reports whether the id is that of a box of this process.
func (h *host) live(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starting[id] || h.boxes[id] != nil
}

func (h *host) busy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.starting)+len(h.boxes) > 0
}
