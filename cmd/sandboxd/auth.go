package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
	"github.com/sandboxd/sandboxd/netguard"
)

func newAuth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "auth",
		Short: "Log in to remote servers",
		Long: `Log in to remote servers that want it (OAuth). Which authorization servers are
trusted stands in the config, under a server's key oauth. Tokens are kept in
$SANDBOXD_STATE, in files that only this user can read.`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAuthLogin(), newAuthStatus(), newAuthLogout())
	return cmd
}

// authFlags are what all of them take.
type authFlags struct {
	operator
	files []string
}

func (f *authFlags) flags(cmd *cobra.Command) {
	f.operator.flags(cmd.Flags())
	cmd.Flags().StringArrayVarP(&f.files, "config", "c", nil, "config `FILE` that has the server (repeatable)")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if cfg, err := config.Load(config.Options{}, f.files...); err == nil {
			for _, s := range cfg.Servers {
				if s.OAuth != nil {
					names = append(names, s.ID)
				}
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// open reads the config and makes what logs in.
func (f *authFlags) open(cmd *cobra.Command) (*config.Config, *logins, error) {
	log := plainLog(cmd.ErrOrStderr())
	if err := f.load(log); err != nil {
		return nil, nil, err
	}
	if len(f.files) == 0 {
		return nil, nil, usagef("no config file: %s --config FILE", cmd.CommandPath())
	}
	cfg, err := config.Load(config.Options{Policies: f.policies(cmd.Context())}, f.files...)
	if err != nil {
		return nil, nil, usageError{err}
	}
	rec, err := openRecords("", log)
	if err != nil {
		return nil, nil, err
	}
	guard, err := f.guard(cmd.Context(), false, netguard.Options{Logger: log, Record: rec.add})
	if err != nil {
		return nil, nil, err
	}
	l, err := newLogins(guard, cfg.Tenant, f.files, log)
	return cfg, l, err
}

// serverNamed finds a server that one could log in to.
func serverNamed(cfg *config.Config, id string) (config.Server, error) {
	var names []string
	for _, s := range cfg.Servers {
		if s.ID == id {
			if s.Transport == config.Stdio {
				return s, usagef("server %s runs here: only servers with a url have logins", id)
			}
			return s, nil
		}
		if s.Transport != config.Stdio {
			names = append(names, s.ID)
		}
	}
	if len(names) == 0 {
		return config.Server{}, usagef("the config serves no server with a url, and none is named %q", id)
	}
	return config.Server{}, usagef("the config serves no server %q: those with a url are %s", id, strings.Join(names, ", "))
}

func newAuthStatus() *cobra.Command {
	var f authFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [SERVER] --config FILE",
		Short: "Show the logins to remote servers",
		Long: `Show the logins to the servers of a config that have the key oauth, without a
secret. Nobody is asked. Exit status 1 where one needs a login.`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, l, err := f.open(cmd)
			if err != nil {
				return err
			}
			list := []oauth.Status{}
			missing := false
			for _, s := range cfg.Servers {
				if s.OAuth == nil || len(args) == 1 && args[0] != s.ID {
					continue
				}
				c, err := l.client(s)
				if err != nil {
					return usageError{err}
				}
				st, err := c.Status(cmd.Context())
				if err != nil {
					return err
				}
				missing = missing || st.State == oauth.NeedsLogin
				list = append(list, st)
			}
			if len(args) == 1 && len(list) == 0 {
				return usagef("the config serves no server %q with the key oauth", args[0])
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), list)
			} else {
				err = printLogins(cmd.OutOrStdout(), list, l)
			}
			if err == nil && missing {
				err = statusError(exitFailure)
			}
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printLogins(w io.Writer, list []oauth.Status, l *logins) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVER\tSTATE\tISSUER\tEXPIRES\tSCOPES")
	for _, st := range list {
		expires := "-"
		if st.Expiry != nil {
			expires = st.Expiry.Local().Format(time.DateTime)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", st.Server, st.State, orDash(st.Issuer), expires, orDash(strings.Join(st.Scopes, " ")))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, st := range list {
		if st.State == oauth.NeedsLogin || len(st.Wanted) > 0 {
			fmt.Fprintf(w, "\n%s: %s\n", st.Server, l.command(st.Server))
		}
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newAuthLogout() *cobra.Command {
	var f authFlags
	var dry bool
	cmd := &cobra.Command{
		Use:   "logout SERVER --config FILE",
		Short: "Revoke and forget a login",
		Long: `Ask the authorization server to revoke the tokens of a login, where it can, and
forget them, the registered client too.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, l, err := f.open(cmd)
			if err != nil {
				return err
			}
			s, err := serverNamed(cfg, args[0])
			if err != nil {
				return err
			}
			c, err := l.client(s)
			if err != nil {
				return usageError{err}
			}
			return logout(cmd.Context(), cmd.OutOrStdout(), c, l, dry)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be forgotten")
	return cmd
}

func logout(ctx context.Context, w io.Writer, c *oauth.Client, l *logins, dry bool) error {
	if dry {
		st, err := c.Status(ctx)
		switch {
		case err != nil:
			return err
		case st.Issuer == "":
			_, err = fmt.Fprintf(w, "there is no login to %s\n", st.Server)
		default:
			_, err = fmt.Fprintf(w, "would revoke the login to %s at %s and remove %s\n", st.Server, st.Issuer, l.store.Path(c.Key()))
		}
		return err
	}
	revoked, err := c.Logout(ctx)
	if errors.Is(err, oauth.ErrNoGrant) {
		_, err = fmt.Fprintf(w, "there was no login to %s\n", c.Key().Server)
		return err
	}
	if err != nil {
		return err
	}
	text := "forgotten; the authorization server revokes no tokens, so they end by themselves"
	if revoked {
		text = "revoked and forgotten"
	}
	_, err = fmt.Fprintf(w, "the login to %s was %s\n", c.Key().Server, text)
	return err
}
