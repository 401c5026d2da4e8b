package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
)

func newPolicyExplain() *cobra.Command {
	var name string
	var o operator
	var asJSON, lookup bool
	cmd := &cobra.Command{
		Use:   "explain --policy FILE|NAME TARGET",
		Short: "Say step by step why a target is allowed or refused",
		Long: `Say step by step why a target is allowed or refused, and which rule would have
to change. TARGET is a URL, HOST:PORT or HOST (port 443). Nothing is connected
to. With --lookup the name is resolved once, where the policy lets the question
out, and its addresses are judged too. Exit status 1 where it is refused.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			log := plainLog(cmd.ErrOrStderr())
			if err := o.load(log); err != nil {
				return err
			}
			p, err := o.policies(cmd.Context()).Find(name, "")
			if err != nil {
				return usageError{err}
			}
			for _, w := range p.Warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "sandboxd:", w)
			}
			x, err := explain(cmd.Context(), &o, p, args[0], lookup)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), x)
			} else {
				err = printExplanation(cmd.OutOrStdout(), x)
			}
			if err == nil && !x.Allow {
				err = statusError(exitFailure)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "policy", "none", "a preset or a policy `FILE`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the explanation as JSON")
	cmd.Flags().BoolVar(&lookup, "lookup", false, "resolve the name and judge its addresses")
	o.flags(cmd.Flags())
	return cmd
}

func explain(ctx context.Context, o *operator, p *policies.Policy, target string, lookup bool) (netguard.Explanation, error) {
	var compiled *netguard.Policy
	if p.Egress != nil {
		var err error
		if compiled, err = netguard.Compile(*p.Egress); err != nil {
			return netguard.Explanation{}, usageError{err}
		}
	}
	if !lookup && len(o.set.Refused) == 0 {
		return netguard.Explain(compiled, target), nil //nolint:contextcheck // without a resolver there is nothing to wait for
	}
	g, err := o.guard(ctx, lookup, netguard.Options{})
	if err != nil {
		return netguard.Explanation{}, err
	}
	return g.Explain(ctx, compiled, target, lookup), nil
}

func printExplanation(w io.Writer, x netguard.Explanation) error {
	for _, s := range x.Steps {
		mark := "ok"
		if !s.Passed {
			mark = "no"
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %s\n", mark, s.Check, s.Detail); err != nil {
			return err
		}
	}
	verdict := "allowed"
	if !x.Allow {
		verdict = "refused (" + string(x.Reason) + ")"
	}
	if x.Rule != "" {
		verdict += " by " + x.Rule
	}
	_, err := fmt.Fprintf(w, "\n%q is %s\n%s\n", x.Target, verdict, x.Change)
	return err
}
