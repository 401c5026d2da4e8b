package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/images/gowasm"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/sandbox"
)

// server is one stdio server to start, whoever asked for it.
type server struct {
	tenant, name string
	command      []string // as it stands in a client's configuration
	env          []string
	mounts       []mountSpec
	policy       *policies.Policy
	isolation    sandbox.Isolation // 0 leaves the choice to the kind of image
	inFlight     func() []string   // names the tool calls under way; may be nil
	dir          string            // where a module's relative path starts; "" is the working folder
	// passed looks up a variable that the command line passes on without a value
	// and env does not have; nil knows none.
	passed func(name string) (string, bool)
}

// launcher turns servers into sandboxes: command line -> sealed image ->
// runtime of the right tier, with an egress from the guard.
type launcher struct {
	builder  *images.Builder
	modules  *gowasm.Builder // Go servers for the WASM tiers
	guard    *netguard.Guard
	silent   *netguard.Guard // writes no records: for refusals that are expected
	runtimes *runtimes
	log      *slog.Logger
	sealed   *images.Image // to start in place of what a reference was built to; nil but for trials
	logins   *logins       // of serve
	tls      *tls.Config   // for remote servers; nil means the system's roots
}

// launchable is a server whose image is sealed and whose policy has compiled.
type launchable struct {
	l       *launcher
	srv     server
	image   images.Image
	args    []string
	entry   []string // the image's command, or what stands in its place
	workDir string
	policy  atomic.Pointer[netguard.Policy] // nil: no network at all
	live    liveEgresses
	tier    sandbox.Isolation
}

// prepare resolves everything that can fail before a start: the reference,
// the tier, the policy's demands, the image.
func (l *launcher) prepare(ctx context.Context, s server) (*launchable, error) {
	cmd, err := images.ParseCommand(s.command)
	if err != nil {
		return nil, usageError{err}
	}
	ref := cmd.Ref
	if s, err = s.with(cmd); err != nil {
		return nil, err
	}
	if ref.Kind == images.KindWASM && s.dir != "" && !filepath.IsAbs(ref.Name) {
		ref.Name = filepath.Join(s.dir, ref.Name)
	}
	tier, err := chooseTier(ref, s)
	if err != nil {
		return nil, err
	}
	for _, kv := range s.env {
		if k, _, _ := strings.Cut(kv, "="); !s.policy.PermitsEnv(k) {
			return nil, usagef("policy %s does not let the server have the variable %s: add it to env there", s.policy.Name, k)
		}
	}
	var policy *netguard.Policy
	if s.policy.Egress != nil && !cmd.NoNetwork {
		if policy, err = netguard.Compile(*s.policy.Egress); err != nil {
			return nil, usageError{fmt.Errorf("policy %s: %w", s.policy.Name, err)}
		}
	}
	// The mounts and the runtime come first: there is no use in building an
	// image that nothing here can run.
	_, closeMounts, err := openMounts(s.mounts)
	if err != nil {
		return nil, err
	}
	closeMounts()
	if _, err := l.runtimes.forTier(ctx, tier); err != nil {
		return nil, err
	}
	img, err := l.seal(ctx, ref, tier)
	if err != nil {
		return nil, buildError(err)
	}
	p := &launchable{l: l, srv: s, image: img, args: cmd.Args, tier: tier, entry: img.Entrypoint, workDir: img.Dir}
	if len(cmd.Entrypoint) > 0 {
		p.entry = cmd.Entrypoint
	} else if len(p.args) == 0 {
		p.args = img.Cmd
	}
	if cmd.Dir != "" {
		p.workDir = cmd.Dir
	}
	p.policy.Store(policy)
	return p, nil
}

// seal builds what a reference names, for a tier, unless it was built before.
func (l *launcher) seal(ctx context.Context, ref images.Ref, tier sandbox.Isolation) (images.Image, error) {
	if l.sealed != nil {
		return *l.sealed, nil
	}
	if ref.Kind != images.KindGo || !tier.IsWASM() {
		return l.builder.Build(ctx, ref)
	}
	res, err := l.modules.Sealed(ctx, gowasm.OfRef(ref))
	return res.Image, err
}

// chooseTier takes the tier that was asked for, or the default of the kind of
// image, raised to the policy's minimum, and refuses what contradicts itself.
func chooseTier(ref images.Ref, s server) (sandbox.Isolation, error) {
	isWASM := ref.Kind == images.KindWASM
	tier := s.isolation
	if tier == 0 {
		tier = sandbox.Container
		if isWASM {
			tier = sandbox.WASM
		} else if s.policy.Isolation > tier {
			tier = s.policy.Isolation
		}
	}
	switch {
	case isWASM && !tier.IsWASM():
		return 0, usagef("%s is a WASM module and cannot run as %s: use --isolation wasm", ref, tier)
	case !isWASM && ref.Kind != images.KindGo && tier.IsWASM():
		return 0, usagef("%s needs a container: use --isolation container or gvisor", ref)
	case !s.policy.Satisfied(tier):
		next := "leave isolation out, and the policy's is taken"
		if tier == sandbox.WASM {
			next = "a WASM module has no stronger tier, so lower the policy's; wasm_counts_as_container meets container"
		}
		return 0, usagef("policy %s asks for isolation %s or stronger, not %s: %s", s.policy.Name, s.policy.Isolation, tier, next)
	}
	return tier, nil
}

// start starts one sandbox. id-less until then: every call is a new one.
func (p *launchable) start(ctx context.Context) (sandbox.Sandbox, error) {
	rt, err := p.l.runtimes.forTier(ctx, p.tier)
	if err != nil {
		return nil, err
	}
	mounts, closeMounts, err := openMounts(p.srv.mounts)
	if err != nil {
		return nil, err
	}
	defer closeMounts()
	spec := sandbox.Spec{
		Tenant: p.srv.tenant, Name: p.srv.name, Isolation: p.tier,
		Image:  sandbox.Image{Digest: p.image.Digest, Path: p.image.Path},
		Args:   append(append([]string(nil), p.entry...), p.args...),
		Env:    mergeEnv(p.image.Env, p.srv.env),
		Dir:    p.workDir,
		Mounts: mounts,
		Limits: p.srv.policy.Limits,
	}
	var egress sandbox.Egress
	if p.policy.Load() != nil {
		egress = p.live.add(p.l.guard, netguard.Subject{Tenant: p.srv.tenant, Sandbox: p.srv.name, InFlight: p.srv.inFlight}, p.policy.Load)
	}
	return rt.Start(ctx, spec, egress)
}

// cacheKey names what decides which tools the server has: the image, the
// command line, the tier, the names of its variables and what is mounted
// where. It holds no variable's value.
func (p *launchable) cacheKey() (string, error) {
	var env, mounts []string
	for _, kv := range mergeEnv(p.image.Env, p.srv.env) {
		name, _, _ := strings.Cut(kv, "=")
		env = append(env, name)
	}
	for _, m := range p.srv.mounts {
		mounts = append(mounts, m.source+":"+m.target)
	}
	slices.Sort(env)
	b, err := json.Marshal(struct {
		Digest, Dir, Tier             string
		Entrypoint, Args, Env, Mounts []string
	}{p.image.Digest, p.workDir, p.tier.String(), p.entry, p.args, env, mounts})
	return string(b), err
}

// cacheDir is where images and compiled modules are kept: SANDBOXD_CACHE, or
// the user's own cache folder.
func cacheDir() (string, error) {
	if dir := os.Getenv("SANDBOXD_CACHE"); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", usagef("SANDBOXD_CACHE must be an absolute path")
		}
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: set SANDBOXD_CACHE: %w", err)
	}
	return filepath.Join(dir, "sandboxd"), nil
}

// serverName makes a name for records out of a command line.
func serverName(command []string) string {
	ref, _, err := images.FromCommand(command)
	if err != nil {
		return "server"
	}
	name := strings.TrimSuffix(filepath.Base(ref.Name), ".wasm")
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, name)
}
