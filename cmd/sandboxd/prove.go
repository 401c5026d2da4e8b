package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/prove"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/sandbox"
)

// newTry is what a proof runs inside a container: this very program.
func newTry() *cobra.Command {
	return &cobra.Command{
		Use:    "try-to-reach ADDRESS:PORT…",
		Short:  "Try to reach addresses (the guest of doctor's proof)",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := prove.Try(cmd.Context(), cmd.OutOrStdout(), args); err != nil {
				return statusError(prove.ReachedStatus)
			}
			return nil
		},
	}
}

// prover starts a sandbox without a policy in each tier and has it try.
type prover struct {
	l   *launcher
	log io.Writer
}

func (p *prover) prove(ctx context.Context, tier sandbox.Isolation) error {
	ctx, cancel := context.WithTimeout(ctx, proofBound)
	defer cancel()
	rt, err := p.l.runtimes.forTier(ctx, tier)
	if err != nil {
		return err
	}
	bait, err := prove.Lay(ctx)
	if err != nil {
		return err
	}
	defer bait.Close()
	dir, err := os.MkdirTemp("", "sandboxd-proof-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	fmt.Fprintf(p.log, "sandboxd: proving %s: a sandbox without policy tries %d addresses …\n", tier, len(bait.Targets()))
	if tier.IsWASM() {
		err = p.proveModule(ctx, rt, tier, dir, bait.Targets())
	} else {
		err = p.proveContainer(ctx, rt, tier, dir, bait.Targets())
	}
	if err != nil {
		return err
	}
	if n := bait.Reached(); n > 0 {
		return fmt.Errorf("%w: %d connections or datagrams arrived on this host", prove.ErrReached, n)
	}
	return nil
}

func (p *prover) proveContainer(ctx context.Context, rt sandbox.Runtime, tier sandbox.Isolation, dir string, targets []netip.AddrPort) error {
	args := []string{"try-to-reach"}
	for _, t := range targets {
		args = append(args, t.String())
	}
	if err := selfContained("/proc/self/exe"); err != nil {
		return err
	}
	img, err := images.Scratch(dir, "sandboxd-proof", "/proc/self/exe")
	if err != nil {
		return err
	}
	return p.run(ctx, rt, tier, img, args)
}

// selfContained reports whether the program at path runs in an image without
// libraries. The error names what to do.
func selfContained(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("this sandboxd is linked against the host's libraries and cannot be the proof's guest: use one that was built with CGO_ENABLED=0, as make build does")
		}
	}
	return nil
}

func (p *prover) proveModule(ctx context.Context, rt sandbox.Runtime, tier sandbox.Isolation, dir string, targets []netip.AddrPort) error {
	for i, t := range targets {
		if !t.Addr().Is4() {
			continue
		}
		module, err := prove.Module(t)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, fmt.Sprintf("reach-%d.wasm", i))
		if err := os.WriteFile(path, module, 0o600); err != nil {
			return err
		}
		img := images.Image{Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(module)), Path: path, Entrypoint: []string{"reach"}}
		if err := p.run(ctx, rt, tier, img, nil); err != nil {
			return err
		}
	}
	return nil
}

// run starts the guest with an egress that no policy opens, and reads its
// verdict from its exit status.
func (p *prover) run(ctx context.Context, rt sandbox.Runtime, tier sandbox.Isolation, img images.Image, args []string) error {
	spec := sandbox.Spec{
		Tenant: "doctor", Name: "proof", Isolation: tier,
		Image: sandbox.Image{Digest: img.Digest, Path: img.Path},
		Args:  append(append([]string(nil), img.Entrypoint...), args...), Env: img.Env, Dir: img.Dir,
	}
	egress := p.l.silent.For(netguard.Subject{Tenant: "doctor", Sandbox: "proof"}, nil)
	sb, err := rt.Start(ctx, spec, egress)
	if err != nil {
		return err
	}
	defer sb.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the verdict is in
	std := sb.Stdio()
	var said, failed bytes.Buffer
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(&failed, io.LimitReader(std.Err, 4<<10)) }()
	_, _ = io.Copy(&said, io.LimitReader(std.Out, 64<<10))
	<-done
	exit, err := sb.Wait(ctx)
	switch {
	case err != nil:
		return err
	case exit.Cause == sandbox.Exited && exit.Code == 0:
		return nil
	case exit.Cause == sandbox.Exited && exit.Code == prove.ReachedStatus:
		return fmt.Errorf("%w: %s", prove.ErrReached, strings.TrimSpace(said.String()))
	}
	return fmt.Errorf("the proof's guest ended with %s %d %s: %.200q", exit.Cause, exit.Code, exit.Detail, failed.String())
}
