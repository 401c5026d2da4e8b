package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
)

// updateView is what an update changes, as --json shows it.
type updateView struct {
	Ref      string                 `json:"ref"`
	Old      string                 `json:"old"`
	New      string                 `json:"new"`
	Packages []images.Change        `json:"packages"`
	Tools    []mcpbridge.ToolChange `json:"tools"`
	Egress   struct {
		Added   []string `json:"added"`
		Removed []string `json:"removed"`
	} `json:"egress"`
	// Untried says why tools and egress were not compared.
	Untried string `json:"untried,omitempty"`
}

func (v *updateView) differs() bool {
	return len(v.Packages)+len(v.Tools)+len(v.Egress.Added)+len(v.Egress.Removed) > 0
}

type updateFlags struct {
	common
	check, asJSON bool
	env           []string
}

func newImageUpdate() *cobra.Command {
	var f updateFlags
	cmd := &cobra.Command{
		Use:   "update [flags] REF | -- COMMAND…",
		Short: "Resolve an image anew, or show with --check what that would change",
		Long: `Resolve an image's packages and base anew, and build it from then on.

With --check nothing changes. The newer image is built beside the one in use, and
shown is what differs: the versions of the server's packages, the tools that each
lists, and the hosts that each tries to reach at its start. For that both are
started without any network. Exit status 1 if anything differs. The distribution's
packages, which an update renews too, are not looked at.`,
		Example: "  sandboxd image update --check -- npx -y @modelcontextprotocol/server-everything",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no image given: %s", cmd.UseLine())
			}
			if err := f.load(); err != nil {
				return err
			}
			return f.run(cmd, args)
		},
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.BoolVar(&f.check, "check", false, "only show what would change: versions, tools and egress")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	fl.StringArrayVar(&f.env, "env", nil, "with --check: NAME=VALUE for the servers, or NAME to pass a variable on (repeatable)")
	return cmd
}

func (f *updateFlags) run(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	ref, _, err := images.FromCommand(args)
	if err != nil {
		return usageError{err}
	}
	l, closeAll, err := f.open(ctx, false)
	if err != nil {
		return err
	}
	defer closeAll()
	old, err := l.builder.Build(ctx, ref)
	if err != nil {
		return buildError(err)
	}
	v := updateView{Ref: ref.String(), Old: old.Digest, Packages: []images.Change{}, Tools: []mcpbridge.ToolChange{}}
	v.Egress.Added, v.Egress.Removed = []string{}, []string{}
	if f.check {
		err = f.preview(ctx, l, args, old, &v)
	} else {
		var now images.Image
		if now, err = buildImage(ctx, l.builder, args, true, ""); err == nil {
			v.New, v.Packages = now.Digest, append(v.Packages, images.Changes(old.Lock, now.Lock)...)
		}
	}
	if err != nil {
		return buildError(err)
	}
	if f.asJSON {
		err = writeJSON(cmd.OutOrStdout(), v)
	} else {
		err = printUpdate(cmd.OutOrStdout(), &v, f.check)
	}
	if err == nil && f.check && v.differs() {
		return statusError(exitFailure)
	}
	return err
}

// preview builds the newer image beside the old one and compares the two.
func (f *updateFlags) preview(ctx context.Context, l *launcher, args []string, old images.Image, v *updateView) error {
	now, drop, err := l.builder.Preview(ctx, old.Ref)
	if err != nil {
		return err
	}
	defer drop() //nolint:errcheck // what is left is the next prune's
	v.New = now.Digest
	v.Packages = append(v.Packages, images.Changes(old.Lock, now.Lock)...)
	if old.Digest == now.Digest {
		return nil
	}
	env, err := envList(f.env)
	if err != nil {
		return err
	}
	seen := &attempts{}
	trial := *l
	if trial.guard, err = f.guard(ctx, false, netguard.Options{Record: seen.add, Logger: l.log}); err != nil {
		return err
	}
	lists := map[string][]json.RawMessage{}
	for name, img := range map[string]images.Image{"old": old, "new": now} {
		trial.sealed = &img
		// Nothing is allowed, so that what is tried is recorded and refused.
		s := server{tenant: "trial", name: name, command: args, env: env, policy: &policies.Policy{Name: "of the trial", Egress: &netguard.Config{Mode: netguard.ModeAllowlist}}}
		p, err := trial.prepare(ctx, s)
		if err != nil {
			return err
		}
		if lists[name], err = p.listTools(ctx); err != nil {
			v.Untried = fmt.Sprintf("the %s image did not list its tools without a network: %v", name, err)
			return nil
		}
	}
	changes, err := mcpbridge.CompareTools(lists["old"], lists["new"])
	if err != nil {
		v.Untried = err.Error()
		return nil
	}
	v.Tools = append(v.Tools, changes...)
	v.Egress.Added, v.Egress.Removed = seen.only("new", "old"), seen.only("old", "new")
	return nil
}

// listTools starts the server once and asks for its tools.
func (p *launchable) listTools(ctx context.Context) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	sb, err := p.start(ctx)
	if err != nil {
		return nil, err
	}
	cl, err := client.Connect(ctx, sb, client.Options{Name: "sandboxd", Version: version, Logger: p.l.log})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
		defer cancel()
		_ = cl.Close(ctx) // the runtimes' end takes what is left
	}()
	defs, _, err := cl.List(ctx, "tools/list", "tools", client.ListBounds{})
	return defs, err
}

// attempts collects where sandboxes wanted to go, by their names.
type attempts struct {
	mu sync.Mutex
	by map[string]map[string]bool
}

func (a *attempts) add(r netguard.Record) {
	if r.Event != netguard.EventDecision {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by == nil {
		a.by = map[string]map[string]bool{}
	}
	if a.by[r.Sandbox] == nil {
		a.by[r.Sandbox] = map[string]bool{}
	}
	to := r.Host
	if r.Port != 0 {
		to = net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
	}
	a.by[r.Sandbox][strconv.QuoteToASCII(to)] = true
}

// only lists what one of two tried and the other did not.
func (a *attempts) only(one, other string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []string{}
	for to := range a.by[one] {
		if !a.by[other][to] {
			out = append(out, to[1:len(to)-1])
		}
	}
	slices.Sort(out)
	return out
}

func printUpdate(w io.Writer, v *updateView, check bool) error {
	switch {
	case v.Old == v.New:
		_, err := fmt.Fprintf(w, "%s is up to date (%s)\n", v.Ref, v.Old)
		return err
	case check:
		fmt.Fprintf(w, "%s would change from %s to %s\n", v.Ref, v.Old, v.New)
	default:
		fmt.Fprintf(w, "%s changed from %s to %s\n", v.Ref, v.Old, v.New)
	}
	for _, c := range v.Packages {
		switch {
		case c.Old == "":
			fmt.Fprintf(w, "  + %s %s %s\n", c.Kind, c.Name, c.New)
		case c.New == "":
			fmt.Fprintf(w, "  - %s %s %s\n", c.Kind, c.Name, c.Old)
		default:
			fmt.Fprintf(w, "  ~ %s %s %s -> %s\n", c.Kind, c.Name, c.Old, c.New)
		}
	}
	if v.Untried != "" {
		fmt.Fprintf(w, "tools and egress were not compared: %s (give it what it needs with --env)\n", v.Untried)
		return nil
	}
	if err := mcpbridge.WriteChanges(w, v.Tools); err != nil {
		return err
	}
	for _, to := range v.Egress.Added {
		fmt.Fprintf(w, "egress + %s\n", to)
	}
	for _, to := range v.Egress.Removed {
		fmt.Fprintf(w, "egress - %s\n", to)
	}
	if check && len(v.Tools)+len(v.Egress.Added)+len(v.Egress.Removed) == 0 {
		fmt.Fprintln(w, "the tools are the same, and nothing else is tried at the start")
	}
	return nil
}
