package gowasm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/images"
)

// Config says where a Builder keeps what it builds, and with what.
type Config struct {
	// CacheDir is the absolute path of the one folder that is written, beside
	// the go command's own caches. It is made if it is missing, for the caller
	// alone. Several processes may share it.
	CacheDir string
	// Go is the go command; empty means go in PATH.
	Go string
	// Environ is the environment whose Go and proxy settings are used; nil
	// means the process's own.
	Environ []string
	// Timeout bounds one build; 0 means 15 minutes.
	Timeout time.Duration
	// Progress is told what is being waited for, one call at a time; nil drops
	// it. It must not block.
	Progress func(images.Step)
	// Logger takes what a maintainer wants to know; nil drops it.
	Logger *slog.Logger
}

// Builder compiles servers and keeps the modules. It is safe for concurrent
// use, and holds no resources between calls.
type Builder struct {
	cfg      Config
	log      *slog.Logger
	building sync.Mutex // one build at a time: each uses every processor
	progress sync.Mutex
}

// Result is a module that was built, now or before.
type Result struct {
	Target Target
	// Image is the module as a runtime takes it.
	Image images.Image
	// Go is the release it was compiled with, and Version what the target's
	// version was resolved to; empty for a folder.
	Go, Version string
	// Warnings are what will fail if the server ever uses it.
	Warnings []Finding
	// Cached says that nothing was compiled.
	Cached bool
}

// New checks cfg and makes the cache folder.
func New(cfg Config) (*Builder, error) {
	if !filepath.IsAbs(cfg.CacheDir) {
		return nil, fmt.Errorf("gowasm: CacheDir %q is not an absolute path", cfg.CacheDir)
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("gowasm: a negative Timeout")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 15 * time.Minute
	}
	if cfg.Go == "" {
		cfg.Go = "go"
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	cfg.Environ = slices.Clone(cfg.Environ)
	b := &Builder{cfg: cfg, log: cfg.Logger}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	for _, sub := range []string{workFolder, refFolder, outFolder} {
		if err := os.MkdirAll(filepath.Join(cfg.CacheDir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	return b, b.sweep()
}

// step reports that something starts; the function that it returns reports
// its end.
func (b *Builder) step(name, detail string) func(bytes int64) {
	start := time.Now()
	b.report(images.Step{Name: name, Detail: detail})
	return func(bytes int64) {
		took := time.Since(start)
		b.log.Debug("module build step done", "step", name, "detail", detail, "bytes", bytes, "took", took)
		b.report(images.Step{Name: name, Detail: detail, Bytes: bytes, Done: true, Took: took})
	}
}

func (b *Builder) report(s images.Step) {
	if b.cfg.Progress == nil {
		return
	}
	b.progress.Lock()
	defer b.progress.Unlock()
	b.cfg.Progress(s)
}

// Sealed returns the module that was built of a target before, without
// starting a program or using the network, and builds it the first time. The
// version that a range or latest meant then, it means until Build is told to
// update. A folder is looked at anew each time.
func (b *Builder) Sealed(ctx context.Context, t Target) (Result, error) {
	if err := t.validate(); err != nil {
		return Result{}, err
	}
	if t.Dir == "" {
		own, err := editsHash()
		if err != nil {
			return Result{}, err
		}
		if r, err := b.readRecord(t); err == nil && r.Edits == own {
			if res, err := b.readOutput(t, r.Key); err == nil {
				return res, nil
			}
		}
	}
	return b.Build(ctx, t, false)
}

// Build compiles a target with the Go that is installed, unless it did so
// before with all the same inputs. update resolves the target's version anew.
// A server that cannot be compiled is a *ReportError.
func (b *Builder) Build(ctx context.Context, t Target, update bool) (Result, error) {
	if err := t.validate(); err != nil {
		return Result{}, err
	}
	b.building.Lock()
	defer b.building.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.Timeout, fmt.Errorf("not built within %s", b.cfg.Timeout))
	defer cancel()
	work, err := os.MkdirTemp(filepath.Join(b.cfg.CacheDir, workFolder), "build-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(work) //nolint:errcheck // what is left is swept another time
	g, err := findGo(ctx, b.cfg.Go, work, b.cfg.Environ)
	if err != nil {
		return Result{}, err
	}
	over, err := writeOverlay(filepath.Join(b.cfg.CacheDir, "overlay"), g.root, g.version)
	if err != nil {
		return Result{}, err
	}
	j := job{b: b, target: t, work: work, dir: t.Dir, pkg: ".", overlay: over, g: g.with("GOTMPDIR=" + work)}
	if t.Dir == "" {
		j.g, j.dir, j.pkg = j.g.with("GOWORK=off"), work, t.Package
		if err := j.lock(ctx, update); err != nil {
			return Result{}, err
		}
	}
	return j.build(ctx)
}
