//go:build linux

package container

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// The containerd namespace and the labels of everything that belongs to an
// engine. The instance label is what Collect goes by.
const (
	defaultNamespace = "sandboxd"
	labelInstance    = "sandboxd.dev/instance"
	labelTenant      = "sandboxd.dev/tenant"
	labelName        = "sandboxd.dev/name"
)

// The user-id ranges that sandboxes get lie between the ranges that
// systemd's documentation gives to containers and those it reserves, where
// no allocator of a common distribution reaches.
const (
	defaultIDBase  = 1879048192
	defaultIDCount = 4000
	idRange        = 65536
)

const (
	defaultArchiveBytes  = 4 << 30
	defaultUnpackedBytes = 8 << 30
	// cleanupBound limits each teardown, which runs on a context of its own.
	cleanupBound = 30 * time.Second
	// maxLabel bounds what a caller's own words take up in a label.
	maxLabel = 200
)

// Config says where the parts of a Host are. New copies it.
type Config struct {
	// Address is containerd's socket. Required.
	Address string
	// Runc and Runsc are the runtimes' paths. An empty Runsc makes the gvisor
	// tier unavailable; an empty Runc the container tier.
	Runc, Runsc string
	// Shim is the path of containerd-shim-runc-v2; empty lets containerd look
	// for it in its own PATH.
	Shim string
	// Init is the path of the static init that init/init.c builds to. Empty
	// makes the server itself the first process, which then has to reap
	// orphans and to handle TERM, and leaves its environment in containerd's
	// database: for tests and emergencies.
	Init string
	// StateDir holds fifos and staged mounts. It must be absolute, belongs to
	// one Host at a time, and Collect owns all of its content. Required.
	StateDir string
	// Instance labels what this Host owns, so that several may share a
	// containerd. Required: lower-case letters, digits and dashes.
	Instance string
	// Namespace is containerd's namespace; empty means sandboxd.
	Namespace string
	// IDBase and IDCount give the host ids of which each sandbox gets 65536;
	// zero means 1879048192 and 4000.
	IDBase, IDCount uint32
	// Ahead keeps the namespaces of one further sandbox ready for each kind that
	// was started before, with a gateway or without.
	Ahead bool
	// MaxArchiveBytes and MaxUnpackedBytes bound an imported image; zero means
	// 4 GiB and 8 GiB.
	MaxArchiveBytes, MaxUnpackedBytes int64
	// KeepImages is how long an image that nobody asks for is kept; 0 keeps
	// each for ever.
	KeepImages time.Duration
	// Keeper has a process beside this one end every box's processes as soon
	// as this one is gone, however it ended. It is this program, which has to
	// call KeeperMain before anything else.
	Keeper bool
	// Logger gets diagnostics. Required.
	Logger *slog.Logger
}

var instanceRE = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// validate fills in defaults and refuses what could not work.
func (c Config) validate() (Config, error) {
	switch {
	case c.Address == "":
		return c, errors.New("container: no containerd address")
	case c.Logger == nil:
		return c, errors.New("container: no logger")
	case !filepath.IsAbs(c.StateDir):
		return c, errors.New("container: the state folder's path must be absolute")
	case !instanceRE.MatchString(c.Instance):
		return c, fmt.Errorf("container: instance %q is not lower-case letters, digits and dashes", c.Instance)
	case c.Runc == "" && c.Runsc == "":
		return c, errors.New("container: neither runc nor runsc given")
	}
	for _, p := range []string{c.Runc, c.Runsc, c.Shim, c.Init} {
		if p == "" {
			continue
		}
		if !filepath.IsAbs(p) {
			return c, fmt.Errorf("container: path %q must be absolute", p)
		}
		if err := unix.Access(p, unix.X_OK); err != nil {
			return c, fmt.Errorf("container: %s cannot be run: %w", p, err)
		}
	}
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	if c.IDBase == 0 {
		c.IDBase = defaultIDBase
	}
	if c.IDCount == 0 {
		c.IDCount = defaultIDCount
	}
	if c.IDBase < idRange || c.KeepImages < 0 {
		return c, fmt.Errorf("container: ids from %d on are the host's own users, or images are kept for a negative time", c.IDBase)
	}
	if end := uint64(c.IDBase) + uint64(c.IDCount)*idRange; end > 1<<31-2 {
		return c, fmt.Errorf("container: id ranges end at %d, beyond 31 bits", end)
	}
	if c.MaxArchiveBytes == 0 {
		c.MaxArchiveBytes = defaultArchiveBytes
	}
	if c.MaxUnpackedBytes == 0 {
		c.MaxUnpackedBytes = defaultUnpackedBytes
	}
	return c, nil
}
