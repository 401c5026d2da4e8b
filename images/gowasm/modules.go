package gowasm

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/images"
)

// versionLock is what a module target was resolved to: the main module that
// was made around it, as the go command reads it. Its sums vouch for every
// byte that is fetched later.
type versionLock struct {
	GoMod string `json:"go_mod"`
	GoSum string `json:"go_sum"`
}

// aroundModule is the path of the main module that is made around a target.
const aroundModule = "sandboxd.invalid/build"

// resolve makes a main module in dir that requires the target, and fetches
// what it needs.
func (b *Builder) resolve(ctx context.Context, g goCommand, dir string, t Target) error {
	if err := writeModule(dir, versionLock{GoMod: "module " + aroundModule + "\n"}); err != nil {
		return err
	}
	done := b.step("modules", "fetching "+t.String()+" and what it needs, through Go's own configuration")
	if _, stderr, err := g.run(ctx, dir, "get", t.Package+"@"+t.Version); err != nil {
		return fetchFailed(ctx, t, stderr, err)
	}
	changed, err := adoptReplacements(ctx, g, dir, t)
	if err != nil {
		return err
	}
	if changed {
		if _, stderr, err := g.run(ctx, dir, "get", t.Package); err != nil {
			return fetchFailed(ctx, t, stderr, err)
		}
	}
	done(0)
	return nil
}

func writeModule(dir string, lock versionLock) error {
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(lock.GoMod), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "go.sum"), []byte(lock.GoSum), 0o600)
}

func readModule(dir string) (versionLock, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return versionLock{}, err
	}
	sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	return versionLock{GoMod: string(mod), GoSum: string(sum)}, err
}

// moduleFile is what go mod edit -json prints, as far as it is used.
type moduleFile struct {
	Require []moduleVersion
	Exclude []moduleVersion
	Replace []struct{ Old, New moduleVersion }
}

type moduleVersion struct{ Path, Version string }

func (m moduleVersion) String() string {
	if m.Version == "" {
		return m.Path
	}
	return m.Path + "@" + m.Version
}

func readModuleFile(ctx context.Context, g goCommand, dir, file string) (moduleFile, error) {
	var m moduleFile
	stdout, stderr, err := g.run(ctx, dir, "mod", "edit", "-json", file)
	if err != nil {
		return m, toolFailed(ctx, "go mod edit", stderr, err)
	}
	return m, json.Unmarshal(stdout, &m)
}

// moduleOf finds the module that holds a package among those required.
func (m moduleFile) moduleOf(pkg string) moduleVersion {
	var best moduleVersion
	for _, r := range m.Require {
		if (pkg == r.Path || strings.HasPrefix(pkg, r.Path+"/")) && len(r.Path) > len(best.Path) {
			best = r
		}
	}
	return best
}

// adoptReplacements takes over the replace and exclude lines of the target's
// own module, which the go command reads of the main module only: its authors
// build with them. A folder of theirs is not in the module, so it is refused.
func adoptReplacements(ctx context.Context, g goCommand, dir string, t Target) (changed bool, err error) {
	own, err := readModuleFile(ctx, g, dir, filepath.Join(dir, "go.mod"))
	if err != nil {
		return false, err
	}
	module := own.moduleOf(t.Package)
	stdout, stderr, err := g.run(ctx, dir, "list", "-m", "-f", "{{.GoMod}}", "--", module.Path)
	if err != nil {
		return false, toolFailed(ctx, "go list -m", stderr, err)
	}
	theirs, err := readModuleFile(ctx, g, dir, strings.TrimSpace(string(stdout)))
	if err != nil {
		return false, err
	}
	args := []string{"mod", "edit"}
	for _, r := range theirs.Replace {
		if r.New.Version == "" {
			return false, &images.Error{
				Kind: images.ErrRefused, What: quoted(module.String()) + " replaces " + quoted(r.Old.Path) + " by a folder that the module does not contain",
				Next: "get its source and give the folder",
			}
		}
		args = append(args, "-replace="+r.Old.String()+"="+r.New.String())
	}
	for _, e := range theirs.Exclude {
		args = append(args, "-exclude="+e.String())
	}
	if len(args) == 2 {
		return false, nil
	}
	if _, stderr, err := g.run(ctx, dir, args...); err != nil {
		return false, toolFailed(ctx, "go mod edit", stderr, err)
	}
	return true, nil
}

// fetchFailed says why modules could not be had.
func fetchFailed(ctx context.Context, t Target, stderr []byte, err error) error {
	if ctx.Err() != nil {
		return toolFailed(ctx, "go get", stderr, err)
	}
	text, last := string(stderr), quoted(lastLine(stderr, err))
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("requires go >=", "requires go1."):
		return &images.Error{Kind: images.ErrTool, What: t.String() + " needs a newer Go: " + last, Next: "install that Go; none is fetched on a module's word"}
	case has("GOVCS disallows"):
		return &images.Error{Kind: images.ErrRefused, What: t.String() + " is not offered by the module proxy, and no version control program is run: " + last, Next: "get its source and give the folder"}
	case has("checksum mismatch", "SECURITY ERROR"):
		return &images.Error{Kind: images.ErrRefused, What: t.String() + " is not what the checksum database knows: " + last, Next: "do not use it; tell its authors"}
	case has("dial tcp", "no such host", "i/o timeout", "TLS handshake", "connection refused", "x509:"):
		return &images.Error{Kind: images.ErrNetwork, What: "the module proxy could not be reached: " + last, Next: "look at go env GOPROXY"}
	}
	return &images.Error{Kind: images.ErrNotFound, What: "no such package or version: " + quoted(t.Package+"@"+t.Version) + ": " + last, Next: targetForms}
}
