package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/doctor"
	"github.com/sandboxd/sandboxd/sandbox"
)

func newDoctor() *cobra.Command {
	var c common
	var asJSON, noProof bool
	var require []string
	var parts string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say which isolation this host really gives, by trying it",
		Long: `Say which isolation this host really gives. Everything that a tier needs is
tried, and each tier proves itself: a sandbox without a policy is started and
tries to reach this host, over every address that it has, and addresses that no
network routes. Exit status 1 where a tier that --require names is missing.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			tiers, err := parseTiers(require)
			if err != nil {
				return err
			}
			if err := c.load(); err != nil {
				return err
			}
			l, closeAll, err := c.open(cmd.Context(), false)
			if err != nil {
				return err
			}
			defer closeAll()
			cfg := doctor.Config{BinDir: doctorParts(parts), Engine: c.socket}
			if !noProof {
				p := &prover{l: l, log: os.Stderr}
				cfg.Prove = p.prove
			}
			report := doctor.Run(cmd.Context(), cfg)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = report.Print(cmd.OutOrStdout())
			}
			if err != nil {
				return err
			}
			if missing := report.Missing(tiers...); len(missing) > 0 {
				if noProof && os.Geteuid() != 0 { // who can try little of what the engine does
					return fmt.Errorf("not certain that this host gives %v: leave out --no-proof, or ask as root", missing)
				}
				return fmt.Errorf("this host does not give %v", missing)
			}
			return nil
		},
	}
	c.flags(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&asJSON, "json", false, "print the report as JSON")
	fl.BoolVar(&noProof, "no-proof", false, "start no sandboxes: only look at what they need")
	fl.StringSliceVar(&require, "require", []string{"wasm"}, "tiers that must hold: wasm, container, gvisor, kata")
	fl.StringVar(&parts, "parts", os.Getenv("SANDBOXD_PARTS"), "`FOLDER` with the engine's parts (default: where make engine puts them)")
	return cmd
}

func parseTiers(names []string) ([]sandbox.Isolation, error) {
	var out []sandbox.Isolation
	for _, n := range names {
		t, err := sandbox.ParseIsolation(n)
		if err != nil {
			return nil, usageError{err}
		}
		out = append(out, t)
	}
	return out, nil
}

// proofBound limits one tier's proof, a module's first compilation included.
const proofBound = 2 * time.Minute
