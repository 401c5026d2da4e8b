package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/netguard"
)

// common are the settings that every command which starts servers takes.
type common struct {
	operator
	socket  string
	records string
	build   buildFlags
	verbose bool
	log     *slog.Logger
}

func (c *common) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.socket, "engine", envOr("SANDBOXD_ENGINE", defaultSocket), "the engine's socket")
	c.operator.flags(f)
	f.StringVar(&c.records, "records", "", "append decision records as JSON lines to `FILE` (- for stderr; default: the operator's, else none)")
	c.build.flags(f)
	f.BoolVarP(&c.verbose, "verbose", "v", false, "say more on stderr")
}

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// stopBound limits what the program does to tidy up at its end.
const stopBound = 20 * time.Second

// load reads the operator's settings, under what the flags say.
func (c *common) load() error {
	level := slog.LevelWarn
	if c.verbose {
		level = slog.LevelDebug
	}
	c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := c.operator.load(c.log); err != nil {
		return err
	}
	if c.records == "" {
		c.records = c.set.Records
	}
	return nil
}

// open makes the launcher, after load. lookups says that a policy will let
// names be looked up. The returned function ends every sandbox and must be
// called.
func (c *common) open(ctx context.Context, lookups bool) (*launcher, func(), error) {
	log := c.log
	cache, err := cacheDir()
	if err != nil {
		return nil, nil, err
	}
	show := &progress{w: os.Stderr}
	modules, err := newModuleBuilder(os.Stderr)
	if err != nil {
		return nil, nil, err
	}
	rec, err := openRecords(c.records, log)
	if err != nil {
		return nil, nil, err
	}
	guard, err := c.guard(ctx, lookups, netguard.Options{Record: rec.add, Logger: log})
	if err != nil {
		_ = rec.Close()
		return nil, nil, err
	}
	silent, err := c.guard(ctx, false, netguard.Options{Logger: log})
	if err != nil {
		_ = rec.Close()
		return nil, nil, err
	}
	rts := newRuntimes(cache, c.socket, log, show.transfer)
	out := &outlet{op: &c.operator, runtimes: rts, opts: netguard.Options{Record: rec.add, Logger: log}}
	builder, err := c.build.builder(os.Stderr, out) //nolint:contextcheck // sweeping the cache is bounded by itself
	if err != nil {
		_ = rec.Close()
		return nil, nil, err
	}
	closeAll := func() { //nolint:contextcheck // what was started is ended also after ctx has
		ctx, cancel := context.WithTimeout(context.Background(), stopBound)
		defer cancel()
		if err := rts.Close(ctx); err != nil {
			log.Error("not everything could be stopped", "error", err)
		}
		_ = rec.Close()
	}
	return &launcher{builder: builder, modules: modules, guard: guard, silent: silent, runtimes: rts, log: log}, closeAll, nil
}

// buildFlags say what images are made of and how.
type buildFlags struct {
	with        []string // distribution packages to add
	unsandboxed bool
	scripts     bool
}

func (f *buildFlags) flags(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.with, "with", nil, "distribution packages to add to the image, such as git")
	fl.BoolVar(&f.unsandboxed, "build-unsandboxed", false, "where an image has to be built: run npm with your own rights, without an engine")
	fl.BoolVar(&f.scripts, "allow-build", false, "where an image has to be built: run its packages' install scripts, in a sandbox")
}

// builder makes a builder on the user's cache that tells w what it waits for.
// Without an outlet it builds nothing that has to be fetched in a sandbox.
func (f *buildFlags) builder(w io.Writer, out *outlet) (*images.Builder, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if f.scripts && f.unsandboxed {
		return nil, usagef("--allow-build runs install scripts in a sandbox: leave --build-unsandboxed out")
	}
	cfg := images.Config{
		CacheDir: filepath.Join(cache, "images"), ExtraPackages: f.with, Unsandboxed: f.unsandboxed, Scripts: f.scripts,
		Progress: (&progress{w: w}).step,
	}
	if out != nil {
		cfg.Outlet = out
	}
	return images.New(cfg)
}

// newBuilder makes a builder for what is built already.
func newBuilder(with []string, w io.Writer) (*images.Builder, error) {
	return (&buildFlags{with: with}).builder(w, nil)
}

// buildError gives an image's failure its exit status: a reference that cannot
// be read is a mistake of the caller's.
func buildError(err error) error {
	if errors.Is(err, images.ErrReference) {
		return usageError{err}
	}
	return err
}
