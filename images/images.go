package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Config says where a Builder keeps what it builds, and with what.
type Config struct {
	// CacheDir is the absolute path of the one folder that is written. It is
	// made if it is missing, for the caller alone. Several processes may share
	// it.
	CacheDir string
	// Logger takes what a maintainer wants to know; nil drops it.
	Logger *slog.Logger
	// Progress is told what is being waited for, one call at a time; nil drops
	// it. It must not block.
	Progress func(Step)
	// Node is the release that runs npm packages; the zero value is the pinned
	// one.
	Node NodeRelease
	// ExtraPackages are distribution packages added to the base root file
	// system, with what they depend on.
	ExtraPackages []string
	// Outlet is how builds reach registries, from inside sandboxes. Without it
	// only what is built already is to be had, unless Unsandboxed is set.
	Outlet Outlet
	// Unsandboxed runs npm of this host with the caller's own rights instead,
	// install scripts off. Only npm packages are built so.
	Unsandboxed bool
	// Scripts runs the install scripts of npm packages, in a sandbox of their
	// own: for packages that compile a part of themselves.
	Scripts bool
	// NPM is the npm program of an unsandboxed build; empty means npm in PATH.
	NPM string
	// Environ is the environment whose npm, apt and proxy settings are used;
	// nil means the process's own.
	Environ []string
	// MaxBytes bounds what one package and all it depends on may unpack to;
	// 0 means 2 GiB.
	MaxBytes int64
	// Timeout bounds one build; 0 means 15 minutes.
	Timeout time.Duration
}

// NodeRelease pins one release of Node.
type NodeRelease struct {
	// Version is exact, as in 24.1.0.
	Version string `json:"version"`
	// Integrity is the sha512-… of the npm package that carries the binary for
	// this machine's architecture. Empty means: taken from the registry at the
	// first build, and locked from then on.
	Integrity string `json:"integrity"`
}

// Step is one thing that a build waits for.
type Step struct {
	// Name is base, node, package or seal.
	Name string
	// Detail is one clause for a person.
	Detail string
	// Bytes is how much has been fetched or written so far, 0 if unknown.
	Bytes int64
	// Done says that the step has ended; Took is then its time.
	Done bool
	Took time.Duration
}

// Image is a sealed image or module, ready to run.
type Image struct {
	Ref Ref
	// Digest is sha256:<64 hex>, of the OCI manifest or of the .wasm file.
	Digest string
	// Path is the OCI image layout that holds it, or the .wasm file.
	Path string
	// Entrypoint is the program with its fixed arguments; the user's own
	// arguments follow.
	Entrypoint []string
	// Cmd are the arguments where the user gives none.
	Cmd []string
	// Env is what every server in this image is given, as KEY=VALUE.
	Env []string
	// Dir is the working directory inside the image, and its user's home.
	Dir string
	// Size is what the image takes in bytes, layers that it shares included.
	Size int64
	// Lock is what the image was built from; nil for a module.
	Lock *Lock
	// Created is when it was built here.
	Created time.Time
}

// Builder builds images and keeps them. It is safe for concurrent use, and
// several processes may use one CacheDir. It holds no resources between
// calls.
type Builder struct {
	cfg      Config
	log      *slog.Logger
	st       *store
	progress sync.Mutex
}

var debNameRE = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// New checks cfg, makes the cache folder and removes what builds that were
// interrupted left there.
func New(cfg Config) (*Builder, error) {
	if !filepath.IsAbs(cfg.CacheDir) {
		return nil, fmt.Errorf("images: CacheDir %q is not an absolute path", cfg.CacheDir)
	}
	if cfg.MaxBytes < 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("images: a negative MaxBytes or Timeout")
	}
	if cfg.Node == (NodeRelease{}) {
		cfg.Node = pinnedNode()
	}
	if !exactRE.MatchString(cfg.Node.Version) {
		return nil, fmt.Errorf("images: Node.Version %q is not an exact version", cfg.Node.Version)
	}
	cfg.ExtraPackages = slices.Compact(slices.Sorted(slices.Values(cfg.ExtraPackages)))
	for _, p := range cfg.ExtraPackages {
		if !debNameRE.MatchString(p) {
			return nil, fmt.Errorf("images: %q is not the name of a distribution package", p)
		}
	}
	if cfg.Scripts && cfg.Unsandboxed {
		return nil, errors.New("images: install scripts run in a sandbox only")
	}
	if cfg.Environ == nil {
		cfg.Environ = os.Environ()
	}
	cfg.Environ = slices.Clone(cfg.Environ)
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 2 << 30
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 15 * time.Minute
	}
	if cfg.NPM == "" {
		cfg.NPM = "npm"
	}
	b := &Builder{cfg: cfg, log: cfg.Logger}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	var err error
	b.st, err = openStore(cfg.CacheDir, b.log)
	return b, err
}

// step reports that something starts; the function that it returns reports
// its end.
func (b *Builder) step(name, detail string) func(bytes int64) {
	start := time.Now()
	b.report(Step{Name: name, Detail: detail})
	return func(bytes int64) {
		took := time.Since(start)
		b.log.Debug("image build step done", "step", name, "detail", detail, "bytes", bytes, "took", took)
		b.report(Step{Name: name, Detail: detail, Bytes: bytes, Done: true, Took: took})
	}
}

func (b *Builder) report(s Step) {
	if b.cfg.Progress == nil {
		return
	}
	b.progress.Lock()
	defer b.progress.Unlock()
	b.cfg.Progress(s)
}

// Build returns the image of ref. The first time it fetches and seals it;
// after that it answers from the cache and neither starts a program nor uses
// the network. Builds of one reference at the same time share the work.
func (b *Builder) Build(ctx context.Context, ref Ref) (Image, error) {
	return b.build(ctx, ref, nil, false)
}

// Update resolves ref anew and builds what it finds. The image built before
// stays what ref means if that fails.
func (b *Builder) Update(ctx context.Context, ref Ref) (Image, error) {
	return b.build(ctx, ref, nil, true)
}

// BuildLocked builds just what lock says and checks that the digest is the
// lock's, if it has one. The result is what lock's reference means from then
// on.
func (b *Builder) BuildLocked(ctx context.Context, lock Lock) (Image, error) {
	ref, err := lock.validate()
	if err != nil {
		return Image{}, err
	}
	if lock.Scripts != b.cfg.Scripts {
		return Image{}, fail(ErrRefused, "the version lock of "+ref.String()+" was made with install scripts run, or without, and this build is not", "build with --allow-build just where the lock says scripts")
	}
	return b.build(ctx, ref, &lock, true)
}

func platform() string { return "linux/" + runtime.GOARCH }
