package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/clients"
	"github.com/sandboxd/sandboxd/policies"
)

type importFlags struct {
	out, secrets string
	dry, force   bool
	asJSON       bool
	keep         bool
}

func newImport() *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Turn an MCP client's configuration into sandboxd's",
		Long: `Turn the configuration of an MCP client (Claude Desktop, Claude Code, Cursor,
Windsurf, VS Code, Zed, Continue), a server.json of the registry, or an engine's
YAML or TOML into the file that sandboxd serve --config reads:

  sandboxd import ~/.cursor/mcp.json -o sandboxd.yaml

Values that are or may be secrets go to files of their own in the secrets folder
(mode 0600), and are never printed. What has no counterpart is reported. Nothing
that is there is overwritten without --force. Exit status 1 where a server was
left out.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.out, "output", "o", "", "write the document to `FILE` (default: stdout)")
	fl.StringVar(&f.secrets, "secrets-dir", "", "`FOLDER` for the secrets' files (default: secrets beside the output)")
	fl.BoolVar(&f.dry, "dry-run", false, "print the document and the report, and write nothing")
	fl.BoolVar(&f.force, "force", false, "overwrite files that are there")
	fl.BoolVar(&f.asJSON, "json", false, "print the report as JSON on stdout (the document goes to --output)")
	fl.BoolVar(&f.keep, "keep-secret-arguments", false, "keep arguments that look like secrets: everyone on this host can read them while the server runs")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command, path string) error {
	if f.asJSON && f.out == "" && !f.dry {
		return usagef("--json prints the report on stdout: say with -o where the document goes")
	}
	data, err := policies.ReadFile(path)
	if err != nil {
		return usageError{err}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	secretsDir, written := f.secretsDir()
	im, err := clients.Import(data, clients.Options{
		Name: path, SecretsDir: written, KeepSecretArguments: f.keep, Home: home, LookupEnv: os.LookupEnv,
		ReadFile: policies.ReadFile, Exists: func(p string) bool { _, err := os.Stat(p); return err == nil },
	})
	if err != nil {
		return usageError{err}
	}
	if err := f.write(cmd.OutOrStdout(), im, secretsDir); err != nil {
		return err
	}
	if f.asJSON {
		err = writeJSON(cmd.OutOrStdout(), im.Report)
	} else {
		err = printImport(cmd.ErrOrStderr(), im.Report, secretsDir)
	}
	if err == nil && slices.ContainsFunc(im.Report.Servers, func(s clients.ServerReport) bool { return s.State == clients.StateLeft }) {
		err = statusError(exitFailure)
	}
	return err
}

// secretsDir is the folder, and how the document names it.
func (f *importFlags) secretsDir() (dir, written string) {
	switch {
	case f.secrets != "":
		abs, err := filepath.Abs(f.secrets)
		if err != nil {
			return f.secrets, f.secrets
		}
		return abs, abs
	case f.out != "":
		return filepath.Join(filepath.Dir(f.out), "secrets"), "secrets"
	}
	return "", "secrets"
}

// write puts the secrets and then the document into place, after a look at all
// that would be overwritten.
func (f *importFlags) write(stdout io.Writer, im *clients.Imported, dir string) error {
	if f.dry {
		if f.asJSON {
			return nil
		}
		_, err := stdout.Write(im.Document)
		return err
	}
	if len(im.Secrets) > 0 && dir == "" {
		return usagef("there are secrets to move out: say where with -o FILE or --secrets-dir FOLDER, or look first with --dry-run")
	}
	if !f.force {
		if _, err := os.Lstat(f.out); f.out != "" && err == nil {
			return usagef("%s is there already: choose another name, or overwrite it with --force", f.out)
		}
		for _, name := range slices.Sorted(maps.Keys(im.Secrets)) {
			old, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil && string(old) != secretFile(im.Secrets[name]) {
				return usagef("the secret %s is there already, with another value: choose another --secrets-dir, or overwrite it with --force", filepath.Join(dir, name))
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if dir != "" && len(im.Report.Secrets) > 0 {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(im.Secrets)) {
		// Never through a link, nor with the mode of what was there.
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := clients.WriteFile(filepath.Join(dir, name), []byte(secretFile(im.Secrets[name])), 0o600); err != nil {
			return fmt.Errorf("secret %s: %w", name, err)
		}
	}
	if f.out == "" {
		_, err := stdout.Write(im.Document)
		return err
	}
	return clients.WriteFile(f.out, im.Document, 0o600)
}

// secretFile is the text of a secret's file: whoever reads it drops one line
// break at the end.
func secretFile(value string) string {
	if strings.HasSuffix(value, "\n") || strings.HasSuffix(value, "\r") {
		return value + "\n"
	}
	return value
}

func printImport(w io.Writer, r clients.Report, dir string) error {
	for _, s := range r.Servers {
		what := s.ID
		if s.Runs != "" {
			what += " (" + s.Runs + ")"
		}
		if _, err := fmt.Fprintf(w, "%-8s %s\n", s.State, what); err != nil {
			return err
		}
		for _, m := range s.Remarks {
			fmt.Fprintf(w, "         - %s\n", m)
		}
	}
	for _, s := range r.Secrets {
		next := "in a file of its own"
		if s.State == clients.StateMissing {
			next = "write " + filepath.Join(dir, s.Name) + " (mode 0600)"
		}
		fmt.Fprintf(w, "secret   %s for %s: %s\n", s.Name, s.Used, next)
	}
	for _, m := range r.Remarks {
		fmt.Fprintf(w, "note     %s\n", m)
	}
	return nil
}
