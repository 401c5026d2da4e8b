package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
	"github.com/sandboxd/sandboxd/sandbox/container/daemon"
	"github.com/sandboxd/sandboxd/sandbox/engine"
)

const defaultSocket = engine.DefaultSocket

func keeperMain() { container.KeeperMain() }

type engineFlags struct {
	socket, group, containerd, parts, root, state, instance string
	idle                                                    time.Duration
	verbose                                                 bool
	bounds                                                  engineBounds
}

func newEngine() *cobra.Command {
	var f engineFlags
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run the engine that starts containers (as root)",
		Long: `Run the engine: the one part that needs root. It owns containerd, namespaces,
nftables and cgroups, and starts containers for callers of its socket, to whom
it hands descriptors. It reads nothing that a sandboxed server wrote.

It uses the containerd that --containerd names, else the system's, else one that
it supervises itself from the pinned parts (make engine).`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve(cmd.Context()) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.socket, "socket", envOr("SANDBOXD_ENGINE", defaultSocket), "where to listen")
	fl.StringVar(&f.group, "group", "", "the group whose members may connect (default: root alone)")
	fl.StringVar(&f.containerd, "containerd", "", "`ADDRESS` of a containerd to use; \"own\" never uses the system's")
	fl.StringVar(&f.parts, "parts", os.Getenv("SANDBOXD_PARTS"), "`FOLDER` with containerd, its shim, runc and runsc (default: where make engine puts them)")
	fl.StringVar(&f.root, "root", "/var/lib/sandboxd", "where images are kept")
	fl.StringVar(&f.state, "state", "/run/sandboxd/state", "where running state is kept")
	fl.StringVar(&f.instance, "instance", "default", "label of what this engine owns, where several share a containerd")
	fl.DurationVar(&f.idle, "idle", 0, "end after so long without a caller or a sandbox (0: never)")
	f.bounds.flags(fl)
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say more on stderr")
	return cmd
}

func (f *engineFlags) serve(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("the engine needs root: sudo sandboxd engine --group GROUP")
	}
	// Whoever may connect has to get as far as the socket, and a guest has to
	// read its resolver's settings, however strict root's own mask is.
	syscall.Umask(0o022)
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	parts, err := findParts(f.parts)
	if err != nil {
		return err
	}
	if err := parts.trusted(); err != nil {
		return err
	}
	// The lock comes first: two engines must never share a state folder.
	srv, err := engine.NewServer(engine.Config{
		Socket: f.socket, Group: f.group, Version: version, Tiers: parts.tiers(), Idle: f.idle, Logger: log,
		Quota: f.bounds.quota, Ceiling: f.bounds.ceiling,
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
		defer cancel()
		_ = srv.Close(ctx)
	}()
	d, err := daemon.Start(ctx, daemonConfig(f, parts, log))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			log.Error("containerd did not end", "error", err)
		}
	}()
	host, err := container.New(container.Config{ //nolint:contextcheck // it lives until Close
		Address: d.Address(), Runc: parts.runc, Runsc: parts.runsc, Shim: parts.shim, Init: parts.init,
		StateDir: filepath.Join(f.state, "boxes"), Instance: f.instance, Keeper: true, Ahead: true, Logger: log,
		IDBase: f.bounds.idBase, IDCount: f.bounds.idCount, KeepImages: f.bounds.keep,
	})
	if err != nil {
		return err
	}
	log.Info("engine ready", "socket", f.socket, "containerd", d.Version(), "supervised", d.Supervised(), "tiers", fmt.Sprint(parts.tiers()))
	return srv.Serve(ctx, host)
}

func daemonConfig(f *engineFlags, p engineParts, log *slog.Logger) daemon.Config {
	cfg := daemon.Config{
		Address: f.containerd, BinDir: p.dir, Logger: log,
		Root: filepath.Join(f.root, "containerd"), State: filepath.Join(f.state, "c"),
	}
	if f.containerd == "own" {
		cfg.Address, cfg.System = "", "none"
	}
	return cfg
}

// engineParts are the programs that the engine drives, as absolute paths;
// empty where one is missing.
type engineParts struct {
	dir                     string
	shim, runc, runsc, init string
}

func (p engineParts) tiers() []sandbox.Isolation {
	var out []sandbox.Isolation
	if p.runc != "" {
		out = append(out, sandbox.Container)
	}
	if p.runsc != "" {
		out = append(out, sandbox.GVisor)
	}
	return out
}

// trusted refuses parts that somebody other than root could change, also where
// containerd is another's: this process has them run as root.
func (p engineParts) trusted() error {
	for _, path := range []string{p.shim, p.runc, p.runsc, p.init} {
		if path == "" {
			continue
		}
		if err := daemon.Trusted(path); err != nil {
			return err
		}
	}
	return nil
}

// partsDirs are the folders where the parts are looked for, in order.
func partsDirs() []string {
	dirs := []string{"/usr/local/libexec/sandboxd"}
	cache := os.Getenv("SANDBOXD_ENGINE_CACHE")
	if cache == "" {
		if user, err := os.UserCacheDir(); err == nil {
			cache = filepath.Join(user, "sandboxd", "engine")
		}
	}
	if cache != "" {
		dirs = append(dirs, filepath.Join(cache, "current"))
	}
	return dirs
}

// findParts takes the folder that was named, else the first usable one of
// partsDirs, else what PATH offers.
func findParts(dir string) (engineParts, error) {
	candidates := partsDirs()
	if dir != "" {
		candidates = []string{dir}
	}
	for _, c := range candidates {
		real, err := filepath.EvalSymlinks(c)
		if err != nil {
			continue
		}
		if real, err = filepath.Abs(real); err != nil {
			continue
		}
		p := engineParts{
			dir: real, shim: program(real, "containerd-shim-runc-v2"), runc: program(real, "runc"),
			runsc: program(real, "runsc"), init: program(real, "sandbox-init"),
		}
		if p.shim != "" && (p.runc != "" || p.runsc != "") {
			return p, nil
		}
	}
	if dir != "" {
		return engineParts{}, usagef("%s does not hold containerd-shim-runc-v2 and runc or runsc: build them with make engine", dir)
	}
	shim, err := exec.LookPath("containerd-shim-runc-v2")
	if err != nil {
		return engineParts{}, errors.New("the engine's parts are missing: build them with `make engine`, or name their folder with --parts")
	}
	runc, _ := exec.LookPath("runc")
	runsc, _ := exec.LookPath("runsc")
	return engineParts{dir: filepath.Dir(shim), shim: shim, runc: runc, runsc: runsc}, nil
}

// doctorParts is the folder that doctor looks at: the named one, or the first
// of partsDirs that is there.
func doctorParts(dir string) string {
	p, err := findParts(dir)
	if err != nil {
		return dir
	}
	return p.dir
}

// program returns the path of an executable in dir, or "".
func program(dir, name string) string {
	p := filepath.Join(dir, name)
	if fi, err := os.Stat(p); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
		return ""
	}
	return p
}
