//go:build linux

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// SystemAddress is where a distribution's containerd listens.
const SystemAddress = "/run/containerd/containerd.sock"

// Config says which containerd to use. The first that applies is taken:
// Address, the system's, one supervised from BinDir.
type Config struct {
	// Address is the socket of a containerd that is given (a path, or
	// unix://path). It must answer and be recent enough; nothing else is tried.
	Address string
	// System is the socket of the system's containerd; empty means
	// SystemAddress, "none" passes it over.
	System string
	// BinDir holds containerd, containerd-shim-runc-v2 and runc. Root runs
	// them, so only root (or this user) may be able to write them.
	BinDir string
	// Root keeps images and snapshots, State the sockets and what runs. Both
	// are absolute, belong to one engine alone and are made when missing.
	// State is best kept under 40 bytes: Unix sockets live below it.
	Root, State string
	// Logger receives what containerd says, at debug level; nil discards it.
	Logger *slog.Logger
}

// maxState leaves room for the names of sockets below State within the 108
// bytes of sun_path.
const maxState = 80

// maxPrivateShims is the longest State that has room for a shim's socket,
// whose name has 64 digits; with a longer one shims use containerd's default.
const maxPrivateShims = 38

func (c *Config) validate() error {
	for name, p := range map[string]string{"root": c.Root, "state": c.State, "bin": c.BinDir} {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" {
			return fmt.Errorf("containerd's %s folder %q must be an absolute, clean path below /", name, p)
		}
		// What quotes the same in Go and in TOML.
		if strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			return fmt.Errorf("containerd's %s folder %q must be plain ASCII without quotes", name, p)
		}
	}
	if c.Root == c.State {
		return errors.New("containerd's root and state must be two folders")
	}
	if len(c.State) > maxState {
		return fmt.Errorf("containerd's state folder %q is longer than %d bytes: sockets would not fit below it", c.State, maxState)
	}
	return nil
}

func (c *Config) socket() string  { return filepath.Join(c.State, "containerd.sock") }
func (c *Config) pidFile() string { return filepath.Join(c.State, "containerd.pid") }
func (c *Config) file() string    { return filepath.Join(c.State, "containerd.toml") }

// disabled are the plugins that sandboxes do not need: other snapshotters,
// image verification and transfer by the daemon, what restarts containers by
// itself, what lets third parties change a container (NRI), and what listens
// or reports. CRI is not even built in; it is named for other builds.
var disabled = []string{
	"io.containerd.cri.v1.images",
	"io.containerd.cri.v1.runtime",
	"io.containerd.grpc.v1.cri",
	"io.containerd.differ.v1.erofs",
	"io.containerd.grpc.v1.sandbox-controllers",
	"io.containerd.grpc.v1.sandboxes",
	"io.containerd.grpc.v1.streaming",
	"io.containerd.grpc.v1.transfer",
	"io.containerd.http.v1.pprof",
	"io.containerd.image-verifier.v1.bindir",
	"io.containerd.internal.v1.opt",
	"io.containerd.internal.v1.tracing",
	"io.containerd.monitor.container.v1.restart",
	"io.containerd.mount-handler.v1.erofs",
	"io.containerd.nri.v1.nri",
	"io.containerd.sandbox.controller.v1.shim",
	"io.containerd.sandbox.store.v1.local",
	"io.containerd.server.v1.debug",
	"io.containerd.server.v1.grpc-tcp",
	"io.containerd.server.v1.metrics",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.snapshotter.v1.native",
	"io.containerd.snapshotter.v1.zfs",
	"io.containerd.streaming.v1.manager",
	"io.containerd.tracing.processor.v1.otlp",
	"io.containerd.transfer.v1.local",
}

// required end the start when they cannot load, rather than the first sandbox.
var required = []string{
	"io.containerd.runtime.v2.task",
	"io.containerd.snapshotter.v1.overlayfs",
}

// render writes containerd's configuration. Version 3 is read by every
// containerd from 2.0 on. Imports are named, since their default reaches
// outside of ours.
func (c *Config) render() string {
	q := strconv.Quote
	list := func(items []string) string {
		quoted := make([]string, len(items))
		for i, s := range items {
			quoted[i] = "  " + q(s)
		}
		return "[\n" + strings.Join(quoted, ",\n") + "\n]"
	}
	var b strings.Builder
	b.WriteString("# Written by sandboxd at each start; changes are lost.\nversion = 3\n")
	fmt.Fprintf(&b, "root = %s\nstate = %s\ntemp = %s\nimports = []\n", q(c.Root), q(c.State), q(filepath.Join(c.Root, "tmp")))
	fmt.Fprintf(&b, "disabled_plugins = %s\nrequired_plugins = %s\n", list(disabled), list(required))
	fmt.Fprintf(&b, "\n[grpc]\n  address = %s\n\n[ttrpc]\n  address = %s\n", q(c.socket()), q(c.socket()+".ttrpc"))
	b.WriteString("\n[debug]\n  level = \"warn\"\n\n[plugins]\n")
	b.WriteString("  [plugins.'io.containerd.monitor.task.v1.cgroups']\n    no_prometheus = true\n")
	if len(c.State) <= maxPrivateShims {
		fmt.Fprintf(&b, "  [plugins.'io.containerd.shim.v1.manager']\n    socket_dir = %s\n", q(filepath.Join(c.State, "s")))
	}
	return b.String()
}

// programs are what a supervised containerd needs in BinDir.
var programs = []string{"containerd", "containerd-shim-runc-v2", "runc"}

// trusted makes sure that nobody but root or this user chose the programs.
func (c *Config) trusted() error {
	// The folder that links may lead from: who writes it chooses the programs.
	dir, err := filepath.EvalSymlinks(c.BinDir)
	if err != nil {
		return missing("containerd's programs are not in " + c.BinDir)
	}
	if err := ownedOnly(dir); err != nil {
		return err
	}
	for _, name := range programs {
		switch err := Trusted(filepath.Join(dir, name)); {
		case errors.Is(err, fs.ErrNotExist):
			return missing(name + " is not in " + c.BinDir)
		case err != nil:
			return err
		}
	}
	return nil
}

// Trusted returns an error where somebody other than root or this user could
// change the program at path, itself or through its folder.
func Trusted(path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if err := ownedOnly(filepath.Dir(path)); err != nil {
		return err
	}
	return ownedOnly(path)
}

func ownedOnly(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("containerd's programs: %w", err)
	}
	if owner, ok := ownerOf(info); !ok || owner != 0 && owner != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s could be changed by another user, and the engine would run it: make it and its folder writable by their owner alone, root or the engine's user", path)
	}
	return nil
}

func missing(what string) error {
	return &sandbox.UnavailableError{
		Tier: sandbox.Container, What: what,
		Next: "run `make engine` as the engine's user, install containerd 2.0 or later, or give one with --containerd ADDRESS",
	}
}
