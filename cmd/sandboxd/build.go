package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/images/gowasm"
)

type moduleFlags struct {
	output         string
	asJSON, update bool
}

func newBuild() *cobra.Command {
	var f moduleFlags
	cmd := &cobra.Command{
		Use:   "build [flags] PACKAGE@VERSION | FOLDER",
		Short: "Compile a Go MCP server to WASM, as it is",
		Long: `Compile a Go MCP server, as its authors wrote it, to a WASM module that the
tiers wasm and wasm-inprocess run:

  sandboxd build example.com/server/cmd/server@v1.2.3
  sandboxd build -o server.wasm ./server

The module can dial, look up names and use HTTP and TLS as far as policy lets
it; it cannot start programs, and nothing that needs C compiles. What was built
is kept and printed as a path. The Go that is installed does the work, with your
rights, on source that is only read: no code of a module runs.

` + "`sandboxd run --isolation wasm -- go:PACKAGE@VERSION`" + ` does it in one step.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := gowasm.ParseTarget(args[0])
			if err != nil {
				return buildError(err)
			}
			b, err := newModuleBuilder(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			res, err := b.Build(cmd.Context(), t, f.update)
			var report *gowasm.ReportError
			if errors.As(err, &report) && f.asJSON {
				if err := writeJSON(cmd.OutOrStdout(), moduleView{Target: t.String(), Problems: report.Findings}); err != nil {
					return err
				}
			}
			if err != nil {
				return buildError(err)
			}
			return f.print(cmd.OutOrStdout(), cmd.ErrOrStderr(), res)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.output, "output", "o", "", "write the module to this `FILE` too")
	fl.BoolVar(&f.asJSON, "json", false, "print what was built, or what keeps it from being built, as JSON")
	fl.BoolVar(&f.update, "update", false, "resolve the version anew instead of using what was locked")
	return cmd
}

// moduleView is a build as --json shows it.
type moduleView struct {
	Target   string           `json:"target"`
	Path     string           `json:"path,omitempty"`
	Digest   string           `json:"digest,omitempty"`
	Size     int64            `json:"size_bytes,omitempty"`
	Go       string           `json:"go,omitempty"`
	Version  string           `json:"version,omitempty"`
	Cached   bool             `json:"cached"`
	Warnings []gowasm.Finding `json:"warnings,omitempty"`
	Problems []gowasm.Finding `json:"problems,omitempty"`
}

func (f *moduleFlags) print(stdout, stderr io.Writer, res gowasm.Result) error {
	path := res.Image.Path
	if f.output != "" {
		path = f.output
		if err := res.CopyTo(path); err != nil {
			return err
		}
	}
	if f.asJSON {
		return writeJSON(stdout, moduleView{
			Target: res.Target.String(), Path: path, Digest: res.Image.Digest, Size: res.Image.Size,
			Go: res.Go, Version: res.Version, Cached: res.Cached, Warnings: res.Warnings,
		})
	}
	for _, w := range res.Warnings {
		if w.Library { // most link more than they use
			continue
		}
		fmt.Fprintf(stderr, "sandboxd: warning: %s %s\n", w.Package, w.Detail)
	}
	_, err := fmt.Fprintln(stdout, path)
	return err
}

// newModuleBuilder makes a builder of modules on the user's cache that tells w
// what it waits for.
func newModuleBuilder(w io.Writer) (*gowasm.Builder, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	show := &progress{w: w}
	return gowasm.New(gowasm.Config{CacheDir: filepath.Join(cache, "gowasm"), Progress: show.step})
}
