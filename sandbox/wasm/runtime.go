package wasm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// Runtime is a sandbox.Runtime of the tiers wasm-inprocess and wasm. It is safe
// for concurrent use.
type Runtime struct {
	cfg     Config
	modules *modules
	workers *workerPool
	cancel  context.CancelFunc // ends compilations

	mu      sync.Mutex
	closed  bool
	running map[sandbox.Sandbox]struct{}
	starts  sync.WaitGroup
}

// New checks cfg and prepares the cache folder. The Runtime must be closed.
func New(cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Runtime{
		cfg:     cfg,
		cancel:  cancel,
		modules: &modules{cfg: cfg, ctx: ctx, byID: map[string]*moduleEntry{}},
		workers: newWorkerPool(ctx, cfg),
		running: map[sandbox.Sandbox]struct{}{},
	}, nil
}

// Start implements sandbox.Runtime for Spec.Isolation wasm-inprocess and wasm.
//
// Of Spec.Limits, memory, temporary space, open files and wall clock hold in
// both tiers; there are no processes to count. HOME and /tmp are the guest's
// own, in the memory of the process that it runs in, and begin empty. CPUs hold
// in tier wasm, for the sandboxes of one worker together: a tenant's of one
// module. In process a guest has one processor, whatever the limit says.
// Spec.Dir becomes PWD, which is what WASI guests go by.
func (r *Runtime) Start(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (sandbox.Sandbox, error) {
	if err := r.begin(); err != nil {
		return nil, errors.Join(err, closeEgress(egress))
	}
	defer r.starts.Done()
	sb, err := r.start(ctx, spec, egress)
	if err != nil {
		return nil, fmt.Errorf("starting %q: %w", spec.Name, errors.Join(err, closeEgress(egress)))
	}
	r.cfg.Logger.Info("sandbox started", "sandbox", sb.ID(), "tenant", spec.Tenant, "name", spec.Name, "isolation", spec.Isolation.String(), "digest", spec.Image.Digest)
	return sb, nil
}

func (r *Runtime) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return sandbox.ErrClosed
	}
	r.starts.Add(1)
	return nil
}

func (r *Runtime) start(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (sandbox.Sandbox, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec.Limits = spec.Limits.WithDefaults()
	switch spec.Isolation {
	case sandbox.WASMInProcess:
		return r.startInProcess(ctx, spec, egress)
	case sandbox.WASM:
		return r.startInWorker(ctx, spec, egress)
	case sandbox.Container, sandbox.GVisor, sandbox.Kata:
	}
	return nil, &sandbox.UnavailableError{Tier: spec.Isolation, What: "the wasm runtime runs wasm-inprocess and wasm only", Next: "give the server an image and run it through the engine"}
}

// track registers a sandbox for Close.
func (r *Runtime) track(sb sandbox.Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[sb] = struct{}{}
}

func (r *Runtime) untrack(sb sandbox.Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, sb)
}

// Close implements sandbox.Runtime. It is idempotent.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.starts.Wait()
	r.mu.Lock()
	all := make([]sandbox.Sandbox, 0, len(r.running))
	for sb := range r.running {
		all = append(all, sb)
	}
	r.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, sb := range all {
		wg.Go(func() { errs[i] = sb.Close(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err // a guest is left: its code must stay
	}
	return errors.Join(r.workers.close(ctx), r.modules.close()) //nolint:contextcheck // freeing must not be cut short
}

// guestHome is where containers have it.
const guestHome = "/home/mcp"

// guestConfig is what both tiers tell a guest about itself.
func guestConfig(spec sandbox.Spec, bare bool) wasip1.Config {
	cfg := wasip1.Config{Args: append([]string(nil), spec.Args...), Env: append([]string(nil), spec.Env...)}
	// A guest counts its own descriptors only, far fewer than a process.
	cfg.MaxFiles = int(min(spec.Limits.Files, 1<<16))
	if spec.Dir != "" {
		cfg.Env = append(cfg.Env, "PWD="+spec.Dir)
	}
	if bare {
		return cfg
	}
	if !slices.ContainsFunc(cfg.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }) {
		cfg.Env = append(cfg.Env, "HOME="+guestHome)
	}
	for _, target := range []string{guestHome, "/tmp"} {
		if !slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool { return m.Target == target }) {
			// As in a container, where it counts as memory too.
			cfg.Private = append(cfg.Private, wasip1.PrivateSpec{Target: target, Bytes: min(spec.Limits.TmpBytes, spec.Limits.MemoryBytes)})
		}
	}
	return cfg
}

func mountSpecs(spec sandbox.Spec) []wasip1.MountSpec {
	list := make([]wasip1.MountSpec, 0, len(spec.Mounts))
	for _, m := range spec.Mounts {
		list = append(list, wasip1.MountSpec{Source: m.Source, Target: m.Target, ReadWrite: m.ReadWrite})
	}
	return list
}

// nameChecker is what an Egress can offer beyond its contract: the policy's
// answer for a name, with nothing sent.
type nameChecker interface {
	CheckName(host string) error
}

func withEgress(cfg wasip1.Config, egress sandbox.Egress) wasip1.Config {
	if egress == nil {
		return cfg
	}
	cfg.Dial = egress.DialContext
	if c, ok := egress.(nameChecker); ok {
		cfg.CheckName = c.CheckName
	}
	return cfg
}

func closeEgress(egress sandbox.Egress) error {
	if egress == nil {
		return nil
	}
	return egress.Close()
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (it would end the process)
	return "wasm-" + hex.EncodeToString(b[:])
}
