package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/clients"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/policies"
)

type installFlags struct {
	path, url, name        string
	policy, isolation      string
	files, env, mounts     []string
	project                bool
	dry, force, remove, js bool
}

func newInstall() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install CLIENT --config FILE [SERVER…] | CLIENT --name NAME -- COMMAND…",
		Short: "Write sandboxed servers into an MCP client's configuration",
		Long: `Write servers into the configuration of an MCP client, each as a call of sandboxd
run, or as the url of a running sandboxd serve. All else in the file stays as it
is, comments too, and a copy of the file is kept beside it.

  sandboxd install cursor --config sandboxd.yaml            every stdio server of it
  sandboxd install vscode --config sandboxd.yaml github --project
  sandboxd install claude-code --url http://127.0.0.1:8787
  sandboxd install claude-desktop --name memory -- npx -y @modelcontextprotocol/server-memory
  sandboxd install cursor --remove memory

A secret is never written: with --config the client's file names the config, and
sandboxd finds the secrets where that says. The clients are ` + strings.Join(clients.Names(), ", ") + ".",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.ValidArgsFunction = cobra.FixedCompletions(clients.Names(), cobra.ShellCompDirectiveNoFileComp)
	fl := cmd.Flags()
	fl.StringVar(&f.path, "path", "", "the client's `FILE`, where it is not in its usual place")
	fl.BoolVar(&f.project, "project", false, "the file of the project in the working folder, not the user's")
	fl.StringArrayVarP(&f.files, "config", "c", nil, "config `FILE` whose servers are written (repeatable)")
	fl.StringVar(&f.url, "url", "", "the `URL` of a running sandboxd serve, written in place of a command")
	fl.StringVar(&f.name, "name", "", "the server's name, for a command given here")
	fl.StringVar(&f.policy, "policy", "none", "for a command given here: a preset or a policy `FILE`")
	fl.StringVar(&f.isolation, "isolation", "", "for a command given here: wasm-inprocess, wasm, container or gvisor")
	fl.StringArrayVar(&f.env, "env", nil, "for a command given here: `NAME` of a variable to pass on (repeatable)")
	fl.StringArrayVar(&f.mounts, "mount", nil, "for a command given here: `SRC:DST[:rw]` (repeatable)")
	fl.BoolVar(&f.remove, "remove", false, "take the named servers out again")
	fl.BoolVar(&f.force, "force", false, "replace or remove servers that sandboxd did not write")
	fl.BoolVar(&f.dry, "dry-run", false, "show what would change, and write nothing")
	fl.BoolVar(&f.js, "json", false, "print what was done as JSON")
	return cmd
}

// installed is what --json prints.
type installed struct {
	Client  string   `json:"client"`
	File    string   `json:"file"`
	Servers []string `json:"servers"`
	Changed bool     `json:"changed"`
	Backup  string   `json:"backup,omitempty"`
	DryRun  bool     `json:"dry_run"`
	Diff    string   `json:"diff,omitempty"`
}

func (f *installFlags) run(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("no client given: the clients are %s", strings.Join(clients.Names(), ", "))
	}
	client, err := clients.Find(args[0])
	if err != nil {
		return usageError{err}
	}
	path, err := f.file(client)
	if err != nil {
		return usageError{err}
	}
	var put []clients.Target
	var names []string
	if f.remove {
		if names = args[1:]; len(names) == 0 {
			return usagef("--remove: name the servers to take out")
		}
	} else {
		dash := cmd.ArgsLenAtDash()
		if put, err = f.targets(args[1:], dash >= 0); err != nil {
			return err
		}
		for _, t := range put {
			names = append(names, t.Name)
		}
	}
	old, err := policies.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usageError{err}
	}
	fresh := err != nil
	var out []string
	if f.remove {
		out = names
	}
	now, err := client.Edit(old, put, out, f.force)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", path, err)}
	}
	did := installed{Client: client.Name, File: path, Servers: names, Changed: !bytes.Equal(old, now), DryRun: f.dry}
	did.Diff = clients.Diff(path, old, now)
	if did.Changed && !f.dry {
		if did.Backup, err = replaceFile(path, old, now, fresh); err != nil {
			return err
		}
	}
	if f.js {
		return writeJSON(cmd.OutOrStdout(), did)
	}
	return printInstalled(cmd.OutOrStdout(), did)
}

func printInstalled(w io.Writer, did installed) error {
	var err error
	switch {
	case !did.Changed:
		_, err = fmt.Fprintf(w, "%s is as it should be\n", did.File)
	case did.DryRun:
		_, err = io.WriteString(w, did.Diff)
	default:
		_, err = fmt.Fprintf(w, "wrote %s: restart %s, or have it load its servers again\n", did.File, did.Client)
		if did.Backup != "" {
			fmt.Fprintf(w, "as it was: %s\n", did.Backup)
		}
	}
	return err
}

func (f *installFlags) file(client clients.Client) (string, error) {
	if f.path != "" {
		return filepath.Abs(f.path)
	}
	project := ""
	if f.project {
		var err error
		if project, err = os.Getwd(); err != nil {
			return "", err
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return client.File(runtime.GOOS, home, project)
}

// targets are the servers to write: one command, or those of a config.
func (f *installFlags) targets(args []string, command bool) ([]clients.Target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	switch {
	case f.url != "" && len(f.files) == 0:
		if len(args) > 0 {
			return nil, usagef("--url alone is one endpoint for all servers: to write some of them, give --config too")
		}
		base, err := f.endpoint()
		return []clients.Target{{Name: "sandboxd", URL: base + "/mcp"}}, err
	case command && len(f.files) == 0:
		return f.command(self, args)
	case len(f.files) == 0:
		return nil, usagef("say what to install: --config FILE, --url URL, or --name NAME -- COMMAND…")
	case command || f.name != "" || len(f.env)+len(f.mounts) > 0 || f.isolation != "" || f.policy != "none":
		return nil, usagef("with --config the config says how a server runs: leave the command and its flags out")
	}
	return f.configured(self, args)
}

// endpoint checks --url. It may hold no secret, and no client gets a token.
func (f *installFlags) endpoint() (string, error) {
	u, err := url.Parse(f.url)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", usagef("--url: want http://HOST:PORT of a running sandboxd serve")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", usagef("--url: no credentials or query belong into it: a client's file would hold them in plain text")
	}
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/mcp"), nil
}

// command is one server that is given here.
func (f *installFlags) command(self string, argv []string) ([]clients.Target, error) {
	if f.name == "" || len(argv) == 0 {
		return nil, usagef("a command needs a name and words: sandboxd install CLIENT --name NAME -- npx -y PACKAGE")
	}
	if _, err := images.ParseCommand(argv); err != nil {
		return nil, usageError{err}
	}
	if clients.HoldsSecret(argv) {
		return nil, usagef("the command holds what is or may be a secret, which would stand in the client's file in plain text: use --config, with the secret in its secrets_dir")
	}
	args := []string{"run"}
	if f.policy != "none" {
		if _, err := (policies.Loader{}).Find(f.policy, ""); err != nil {
			return nil, usageError{err}
		}
		p := f.policy
		if strings.ContainsRune(p, filepath.Separator) || filepath.Ext(p) != "" {
			abs, err := filepath.Abs(p)
			if err != nil {
				return nil, err
			}
			p = abs
		}
		args = append(args, "--policy", p)
	}
	if f.isolation != "" {
		args = append(args, "--isolation", f.isolation)
	}
	for _, m := range f.mounts {
		spec, err := parseMount(m)
		if err != nil {
			return nil, err
		}
		m = spec.source + ":" + spec.target
		if spec.readWrite {
			m += ":rw"
		}
		args = append(args, "--mount", m)
	}
	for _, e := range f.env {
		if strings.Contains(e, "=") {
			return nil, usagef("--env: give the NAME alone: a value would stand in the client's file in plain text")
		}
		args = append(args, "--env", e)
	}
	return []clients.Target{{Name: f.name, Command: self, Args: append(append(args, "--"), argv...)}}, nil
}

// configured are the servers of config files, all or those that are named.
func (f *installFlags) configured(self string, names []string) ([]clients.Target, error) {
	cfg, err := config.Load(config.Options{}, f.files...)
	if err != nil {
		return nil, usageError{err}
	}
	for _, n := range names {
		if !slices.ContainsFunc(cfg.Servers, func(s config.Server) bool { return s.ID == n }) {
			return nil, usagef("the config serves no server %q", n)
		}
	}
	var base string
	if f.url != "" {
		if base, err = f.endpoint(); err != nil {
			return nil, err
		}
	}
	run := []string{"run"}
	for _, file := range f.files {
		abs, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		run = append(run, "--config", abs)
	}
	var out []clients.Target
	for _, s := range cfg.Servers {
		if len(names) > 0 && !slices.Contains(names, s.ID) {
			continue
		}
		if base != "" {
			out = append(out, clients.Target{Name: s.ID, URL: base + "/mcp/" + slug(s.ID)})
			continue
		}
		if err := runnable(s); err != nil {
			if len(names) > 0 {
				return nil, usageError{err}
			}
			fmt.Fprintln(os.Stderr, "sandboxd: left out:", err)
			continue
		}
		out = append(out, clients.Target{Name: s.ID, Command: self, Args: append(slices.Clone(run), "--server", s.ID)})
	}
	if len(out) == 0 {
		return nil, usagef("the config has no server to write")
	}
	return out, nil
}

// replaceFile writes a client's file whole, after a copy of what was there, and
// only if nobody has changed it meanwhile.
func replaceFile(path string, old, now []byte, fresh bool) (backup string, err error) {
	if fresh {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a client's own folder, which others may list
			return "", err
		}
		return "", clients.WriteFile(path, now, 0o600)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		backup = path + ".bak-" + time.Now().UTC().Format("20060102-150405")
		if n > 0 {
			backup += fmt.Sprintf("-%d", n)
		}
		b, err := os.OpenFile(backup, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
		if errors.Is(err, fs.ErrExist) && n < 100 {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("no copy of %s can be kept beside it, so it was left alone: %w", path, err)
		}
		_, err = b.Write(old)
		if err = errors.Join(err, b.Close()); err != nil {
			return "", err
		}
		break
	}
	if again, err := policies.ReadFile(path); err != nil || !bytes.Equal(again, old) {
		return "", errors.Join(fmt.Errorf("%s was changed by somebody else just now: try again", path), err, os.Remove(backup))
	}
	return backup, clients.WriteFile(path, now, info.Mode().Perm())
}
