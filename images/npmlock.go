package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLock bounds a package-lock.json; the largest known server's has 0.5 MB.
const maxLock = 32 << 20

// checkTree reads the lock that npm wrote, checks every entry, and settles the
// exact version in it.
func checkTree(job npmJob) (npmTree, error) {
	raw, err := readBounded(job.dir, "package-lock.json", maxLock)
	if err != nil {
		return npmTree{}, err
	}
	return checkLock(raw, job.name)
}

// checkLock refuses a lock with anything in it that the registry does not
// vouch for by hash, and returns it in a canonical form: without download
// addresses, and asking for the exact version.
func checkLock(raw []byte, name string) (npmTree, error) {
	var doc struct {
		Version  int                       `json:"lockfileVersion"`
		Packages map[string]map[string]any `json:"packages"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		return npmTree{}, fail(ErrRefused, "the npm lock is not readable: "+quoted(err.Error()), "")
	}
	if doc.Version != 3 && doc.Version != 2 {
		return npmTree{}, fail(ErrRefused, fmt.Sprintf("the npm lock has version %d", doc.Version), "npm 7 or later is needed")
	}
	var scripts []string
	for _, key := range slices.Sorted(maps.Keys(doc.Packages)) {
		if key == "" {
			continue
		}
		if err := checkEntry(key, doc.Packages[key]); err != nil {
			return npmTree{}, err
		}
		delete(doc.Packages[key], "resolved")
		if has, _ := doc.Packages[key]["hasInstallScript"].(bool); has {
			scripts = append(scripts, strings.TrimPrefix(key, "node_modules/"))
		}
	}
	main, ok := doc.Packages["node_modules/"+name]
	if !ok {
		return npmTree{}, fail(ErrRefused, "the npm lock does not hold "+name, "")
	}
	t := npmTree{version: text(main["version"]), integrity: text(main["integrity"]), scripts: scripts}
	if real := text(main["name"]); real != "" && real != name {
		return npmTree{}, fail(ErrRefused, "the npm lock puts "+quoted(real)+" in the place of "+name, "")
	}
	doc.Packages[""] = map[string]any{"name": appName, "dependencies": map[string]any{name: t.version}}
	var err error
	t.lock, err = json.MarshalIndent(map[string]any{
		"name": appName, "lockfileVersion": 3, "requires": true, "packages": doc.Packages,
	}, "", "  ")
	return t, err
}

// checkEntry looks at one package of a lock.
func checkEntry(key string, e map[string]any) error {
	where := "the npm lock's entry " + quoted(key)
	if !strings.HasPrefix(key, "node_modules/") || !filepath.IsLocal(key) || strings.Contains(key, "/../") {
		return fail(ErrRefused, where+" lies outside node_modules", "")
	}
	if link, _ := e["link"].(bool); link {
		return fail(ErrRefused, where+" is a link to a folder", "")
	}
	if !exactRE.MatchString(text(e["version"])) {
		return fail(ErrRefused, where+" has no exact version", "only packages of the registry are built")
	}
	if r := text(e["resolved"]); r != "" && !strings.HasPrefix(r, "https://") && !strings.HasPrefix(r, "http://") {
		return fail(ErrRefused, where+" comes from outside the registry", "only packages of the registry are built")
	}
	if bundled, _ := e["inBundle"].(bool); bundled {
		return nil // part of another package's tarball, under its hash
	}
	deps, _ := e["dependencies"].(map[string]any)
	for name, spec := range deps {
		if outside(text(spec)) {
			return fail(ErrRefused, where+" depends on "+quoted(name)+" from outside the registry: "+quoted(text(spec)), "only packages of the registry are built")
		}
	}
	if i := text(e["integrity"]); !strings.HasPrefix(i, "sha512-") && !strings.HasPrefix(i, "sha1-") {
		return fail(ErrRefused, where+" has no hash", "only what the registry vouches for by hash is built")
	}
	return nil
}

// outside reports whether a dependency's specification is a URL, a folder or a
// git address. An older npm has no switch against those.
func outside(spec string) bool {
	return !strings.HasPrefix(spec, "npm:") && strings.ContainsAny(spec, ":/")
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// readBounded reads a regular file of at most most bytes that a stranger left
// in dir.
func readBounded(dir, name string, most int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(ErrRefused, "the fetch left no "+quoted(name), "")
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fail(ErrRefused, quoted(name)+" is not a file of a sane size", "")
	}
	return root.ReadFile(name)
}

// manifest is what counts of a package's own package.json.
type manifest struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Bin     json.RawMessage `json:"bin"`
}

// readManifest reads the package.json of the installed package and checks that
// it is the one that was asked for.
func readManifest(root *os.Root, name, version string) (manifest, error) {
	var m manifest
	info, err := root.Lstat("package.json")
	if err != nil {
		return m, err
	}
	if !info.Mode().IsRegular() || info.Size() > 4<<20 {
		return m, fail(ErrRefused, "the package.json of "+name+" is not a file of a sane size", "")
	}
	raw, err := fs.ReadFile(root.FS(), "package.json")
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(bytes.TrimPrefix(raw, []byte("\ufeff")), &m); err != nil {
		return m, fail(ErrRefused, "the package.json of "+name+" is not readable: "+quoted(err.Error()), "")
	}
	// npm leaves a leading v and the build's name out of its lock.
	own, _, _ := strings.Cut(strings.TrimPrefix(m.Version, "v"), "+")
	if m.Name != name || own != version {
		return m, fail(ErrRefused, "the package "+name+"@"+version+" calls itself "+quoted(m.Name+"@"+m.Version), "")
	}
	return m, nil
}
