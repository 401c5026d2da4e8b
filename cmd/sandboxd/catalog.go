package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/clients"
	"github.com/sandboxd/sandboxd/images/catalog"
)

func newCatalog() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Find servers that were tried, and add them to a config",
		Long: `Servers that were run in a sandbox, each with the hash of its package and of its
tools, a policy with the hosts that it needs, and the names of its secrets. The
catalogue is part of this program; --index takes another one, which has to be
signed by a key that the operator's settings name.`,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCatalogSearch(), newCatalogShow(), newCatalogAdd(), newCatalogVerify(), newCatalogSign())
	return cmd
}

// indexFlags name the catalogue to read.
type indexFlags struct{ index string }

func (f *indexFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.index, "index", "", "another catalogue's `FILE`, with its signature in FILE.minisig")
}

// open reads the shipped index, or another that is signed, not expired and not
// older than what was seen.
func (f *indexFlags) open(o *operator) (*catalog.Index, error) {
	own, _, err := catalog.Shipped()
	if err != nil || f.index == "" {
		return own, err
	}
	data, sig, err := readSigned(f.index)
	if err != nil {
		return nil, usageError{err}
	}
	x, err := catalog.Verify(data, sig, o.set.CatalogKeys, time.Now())
	if err != nil {
		return nil, err
	}
	if r := x.Meta.Catalog; r.Name == own.Meta.Catalog.Name && r.Version < own.Meta.Catalog.Version {
		return nil, fmt.Errorf("%w: this program carries version %d", catalog.ErrRollback, own.Meta.Catalog.Version)
	}
	dir, err := stateDir("")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	seen := catalog.Seen{Path: filepath.Join(filepath.Dir(filepath.Clean(dir)), "catalogs.json")}
	return x, seen.Check(x.Meta.Catalog, hex.EncodeToString(sum[:]))
}

func readSigned(path string) (data, sig []byte, err error) {
	if data, err = readBounded(path, catalog.MaxBytes); err != nil {
		return nil, nil, err
	}
	sig, err = readBounded(path+".minisig", 4<<10)
	return data, sig, err
}

func readBounded(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", path, most)
	}
	return os.ReadFile(path)
}

// catalogView is an entry in a list.
type catalogView struct {
	Name        string `json:"name"`
	Full        string `json:"full_name"`
	Description string `json:"description"`
	Package     string `json:"package"`
	Tools       int    `json:"tools"`
}

func newCatalogSearch() *cobra.Command {
	var f indexFlags
	var o operator
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "search [WORD…]",
		Short: "List the servers in which every word occurs",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.load(plainLog(cmd.ErrOrStderr())); err != nil {
				return err
			}
			x, err := f.open(&o)
			if err != nil {
				return err
			}
			views := []catalogView{}
			for _, e := range x.Search(args...) {
				p := e.Package()
				views = append(views, catalogView{
					e.Meta.Catalog.Short, e.Server.Name, e.Server.Description, p.RegistryType + ":" + p.Identifier + "@" + p.Version, len(e.Meta.Catalog.Tools),
				})
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), views)
			}
			if len(views) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "sandboxd: the catalogue has no server in which every word occurs: sandboxd catalog search lists them all")
				return nil
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(tw, "NAME\tPACKAGE\tTOOLS\tDESCRIPTION")
			for _, v := range views {
				fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", v.Name, v.Package, v.Tools, clients.Plain(v.Description, 70))
			}
			return tw.Flush()
		},
	}
	f.flags(cmd)
	o.fileFlag(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the list as JSON")
	return cmd
}

func newCatalogShow() *cobra.Command {
	var f indexFlags
	var o operator
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a server: its package, hashes, policy, secrets and tools",
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.load(plainLog(cmd.ErrOrStderr())); err != nil {
				return err
			}
			x, err := f.open(&o)
			if err != nil {
				return err
			}
			e, err := entryOf(x, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), e)
			}
			return showEntry(cmd.OutOrStdout(), e)
		},
	}
	f.flags(cmd)
	o.fileFlag(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the entry as JSON, in the registry's form")
	cmd.ValidArgsFunction = completeCatalog
	return cmd
}

func entryOf(x *catalog.Index, name string) (catalog.Entry, error) {
	e, ok := x.Find(name)
	if !ok {
		return e, usagef("the catalogue has no server %q: sandboxd catalog search lists those it has", name)
	}
	return e, nil
}

func showEntry(w io.Writer, e catalog.Entry) error {
	p, facts := e.Package(), e.Meta.Catalog
	fmt.Fprintf(w, "%s (%s)\n  %s\n", facts.Short, e.Server.Name, clients.Plain(e.Server.Description, 400))
	fmt.Fprintf(w, "package    %s:%s@%s\nintegrity  %s\ntools      %s\n", p.RegistryType, p.Identifier, p.Version, facts.Integrity, facts.ToolsHash)
	fmt.Fprintf(w, "seen in    %s on %s, without any network\n", strings.Join(facts.Tiers, " and "), facts.Platform)
	for _, v := range p.Variables {
		kind := "variable"
		if v.Secret {
			kind = "secret"
		}
		fmt.Fprintf(w, "%-10s %s\n", kind, v.Name)
	}
	if facts.Mount != "" {
		fmt.Fprintf(w, "folder     at %s: give it with --mount SRC:%s\n", facts.Mount, facts.Mount)
	}
	policy := "none: it gets no network"
	if len(facts.Policy) > 0 {
		var flat bytes.Buffer
		if err := json.Compact(&flat, facts.Policy); err != nil {
			return err
		}
		policy = flat.String()
	}
	_, err := fmt.Fprintf(w, "policy     %s\n%-10s %s\n", policy, fmt.Sprintf("%d tools", len(facts.Tools)), clients.Plain(strings.Join(facts.Tools, ", "), 2000))
	return err
}

func newCatalogVerify() *cobra.Command {
	var o operator
	var keys []string
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check a catalogue's signature, form and end",
		Long: `Check a catalogue: FILE.minisig has to be its signature by a key of the operator's
settings (catalog: {keys: [RW…]}), or of --key. What was seen before is not
looked at.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.load(plainLog(cmd.ErrOrStderr())); err != nil {
				return err
			}
			trusted := o.set.CatalogKeys
			for _, k := range keys {
				key, err := catalog.ParseKey(k)
				if err != nil {
					return usagef("--key: %w", err)
				}
				trusted = append(trusted, key)
			}
			data, sig, err := readSigned(args[0])
			if err != nil {
				return usageError{err}
			}
			x, err := catalog.Verify(data, sig, trusted, time.Now())
			if err != nil {
				return err
			}
			r := x.Meta.Catalog
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s version %d, %d servers, until %s: signed by a trusted key\n", r.Name, r.Version, len(x.Servers), r.Expires.Format(time.DateOnly))
			return err
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "a public key to trust, beside the operator's (repeatable)")
	o.fileFlag(cmd.Flags())
	return cmd
}

func newCatalogSign() *cobra.Command {
	var keyFile, passwordFile string
	cmd := &cobra.Command{
		Use:   "sign FILE --key SECRET",
		Short: "Sign a catalogue with a minisign key",
		Long: `Check a catalogue's form and write its signature to FILE.minisig, as minisign does.
SECRET is minisign's secret key file; --password-file holds its password.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readBounded(args[0], catalog.MaxBytes)
			if err != nil {
				return usageError{err}
			}
			if keyFile == "" {
				return usagef("--key names the secret key's file")
			}
			key, err := readBounded(keyFile, 4<<10)
			if err != nil {
				return usageError{err}
			}
			var password string
			if passwordFile != "" {
				b, err := readBounded(passwordFile, 4<<10)
				if err != nil {
					return usageError{err}
				}
				password = strings.TrimRight(string(b), "\r\n")
			}
			sig, err := catalog.Sign(data, key, password)
			if err != nil {
				return usageError{err}
			}
			return clients.WriteFile(args[0]+".minisig", sig, 0o644)
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "minisign secret key `FILE`")
	cmd.Flags().StringVar(&passwordFile, "password-file", "", "`FILE` with the key's password")
	return cmd
}
