package doctor

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Config says what to look at. The zero value looks at the host alone.
type Config struct {
	// BinDir holds the engine's parts; empty looks on PATH alone.
	BinDir string
	// Containerd is the socket of a containerd that is given; empty means the
	// system's.
	Containerd string
	// Engine is the engine's socket; empty passes that check over.
	Engine string
	// Dir is a folder on the file system that will hold mounts, for the trial
	// of id-mapped ones; empty means the folder for temporary files.
	Dir string
	// Prove starts a sandbox of the tier without a policy, has it try to reach
	// something, and returns nil only if it reached nothing. An error that is
	// sandbox.ErrUnavailable says why the tier cannot run. Nil leaves tiers
	// unproven.
	Prove func(ctx context.Context, tier sandbox.Isolation) error
	// Skip leaves tiers out of Prove.
	Skip []sandbox.Isolation
}

// Time bounds. A proof may have to build an image first.
const (
	checkTimeout = 10 * time.Second
	proofTimeout = 5 * time.Minute
)

// needs lists what each tier needs, by the names of checks.
var needs = []struct {
	tier   sandbox.Isolation
	checks []string
}{
	{sandbox.WASMInProcess, nil},
	{sandbox.WASM, []string{nameSeccomp, nameLandlock}},
	{sandbox.Container, containerNeeds(nameRunc)},
	{sandbox.GVisor, containerNeeds(nameRunsc)},
	{sandbox.Kata, containerNeeds(nameKata, nameKVM)},
}

func containerNeeds(more ...string) []string {
	return append([]string{
		nameContainerd, nameShim, nameUserNS, nameIDMap, nameCgroups, nameSeccomp, nameNftables, nameOverlay,
	}, more...)
}

// The names of checks that tiers need.
const (
	nameContainerd = "containerd"
	nameShim       = "shim"
	nameRunc       = "runc"
	nameRunsc      = "runsc"
	nameKata       = "kata"
	nameUserNS     = "user namespaces"
	nameIDMap      = "id-mapped mounts"
	nameCgroups    = "cgroups"
	nameSeccomp    = "seccomp"
	nameLandlock   = "landlock"
	nameNftables   = "nftables"
	nameOverlay    = "overlayfs"
	nameKVM        = "kvm"
	nameEngine     = "engine"
)

// Run tries everything. It ends early, with what it has, when ctx ends.
func Run(ctx context.Context, cfg Config) Report {
	r := Report{OS: runtime.GOOS, Arch: runtime.GOARCH, UID: userID(), Kernel: kernel()}
	for _, c := range checks(cfg) {
		if ctx.Err() != nil {
			r.Checks = append(r.Checks, untried(c.name, "the time was over", ""))
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, checkTimeout)
		got := c.run(bounded)
		cancel()
		got.Name, got.Detail = c.name, line(got.Detail)
		r.Checks = append(r.Checks, got)
	}
	deferToEngine(r.Checks)
	for _, n := range needs {
		t, proof := judge(ctx, cfg, r.Checks, n.tier, n.checks)
		if proof != nil {
			r.Checks = append(r.Checks, *proof)
		}
		r.Tiers = append(r.Tiers, t)
	}
	return r
}

// deferToEngine takes back what an ordinary user could not find: a running
// engine has parts of its own, which that user may well not see.
func deferToEngine(done []Check) {
	runs := slices.ContainsFunc(done, func(c Check) bool { return c.Name == nameEngine && c.Status == OK })
	if !runs || userID() == 0 {
		return
	}
	for i, c := range done {
		if c.Status == Fail && slices.Contains([]string{nameContainerd, nameShim, nameRunc, nameRunsc}, c.Name) {
			done[i] = untried(c.Name, "the running engine has its own", "")
		}
	}
}

// trial is one check before it ran.
type trial struct {
	name string
	run  func(ctx context.Context) Check
}

func ok(detail string) Check { return Check{Status: OK, Detail: detail} }

func warn(detail, next string) Check { return Check{Status: Warn, Detail: detail, Next: next} }

func fail(detail, next string) Check { return Check{Status: Fail, Detail: detail, Next: next} }

func failed(what string, err error) Check { return fail(what+": "+err.Error(), "") }

func absent(detail string) Check { return Check{Status: Warn, Detail: detail, absent: true} }

func untried(name, why, next string) Check {
	return Check{Name: name, Status: Warn, Detail: "not tried: " + why, Next: next, Untried: true}
}

func rootOnly() Check { return untried("", "needs root", "run sudo sandboxd doctor") }

// judge decides about a tier: by proof where there is one, else by what it
// needs.
func judge(ctx context.Context, cfg Config, done []Check, tier sandbox.Isolation, need []string) (Tier, *Check) {
	t := Tier{Name: tier.String(), isolation: tier}
	var broken, open []string
	for _, name := range need {
		found := false
		for _, c := range done {
			if c.Name != name {
				continue
			}
			found = true
			switch {
			case c.Untried:
				open = append(open, name)
			case c.Status == Fail || c.absent:
				broken = append(broken, name)
			}
		}
		if !found { // another operating system
			broken = append(broken, name)
		}
	}
	lacks := "lacks " + strings.Join(broken, ", ")
	if cfg.Prove == nil || skipped(cfg, tier) || tier == sandbox.Kata {
		switch {
		case len(broken) > 0:
			t.Detail = lacks
		case len(open) > 0:
			t.Detail = "could not be tried: " + strings.Join(open, ", ")
		case tier == sandbox.Kata:
			t.Detail = "its parts are here; running on it is not tested"
		default:
			t.Holds, t.Detail = true, "all that it needs works; no sandbox was started to prove it"
		}
		return t, nil
	}
	bounded, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	err := cfg.Prove(bounded, tier)
	proof := Check{Name: "proof: " + tier.String()}
	switch {
	case err == nil:
		proof.Status, proof.Detail = OK, "a sandbox without policy was started and reached nothing"
		t.Holds, t.Proven, t.Detail = true, true, "proven"
	case errors.Is(err, sandbox.ErrUnavailable):
		proof.Status, proof.Detail = Fail, line(err.Error())
		t.Detail = "does not start"
		if len(broken) > 0 {
			t.Detail = lacks
		}
	default:
		proof.Status, proof.Detail = Fail, line(err.Error())
		proof.Next = "do not rely on this tier before this is understood"
		t.Detail = "the proof failed"
	}
	return t, &proof
}

func skipped(cfg Config, tier sandbox.Isolation) bool {
	for _, s := range cfg.Skip {
		if s == tier {
			return true
		}
	}
	return false
}
