package images

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	appDir  = "/app"
	nodeBin = "/" + nodeDir + "/bin/node"
)

// entrypoint resolves the command of the package installed in dir, by npx's
// rules, to the argument vector that starts it without a shell.
func entrypoint(dir, name, version, bin string) ([]string, error) {
	tree, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer tree.Close() //nolint:errcheck // only read from
	pkgDir := path.Join("node_modules", name)
	if info, err := tree.Lstat(pkgDir); err != nil || !info.IsDir() {
		return nil, fail(ErrRefused, "the package "+name+" was not installed as a folder", "")
	}
	root, err := tree.OpenRoot(pkgDir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	m, err := readManifest(root, name, version)
	if err != nil {
		return nil, err
	}
	file, err := m.command(bin)
	if err != nil {
		return nil, err
	}
	if !filepath.IsLocal(file) {
		return nil, fail(ErrRefused, "the command of "+name+" lies outside the package: "+quoted(file), "")
	}
	file = path.Clean(file)
	info, err := root.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return nil, fail(ErrRefused, "the command of "+name+" is not a file of the package: "+quoted(file), "")
	}
	f, err := root.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	return program(f, path.Join(appDir, "node_modules", name, file), info.Mode())
}

// command picks the file of the command. Without a name, npx takes the only
// one there is (under whatever names), else the one named as the package.
func (m manifest) command(bin string) (string, error) {
	base := m.Name[strings.LastIndexByte(m.Name, '/')+1:]
	bins := map[string]string{}
	var single string
	switch {
	case len(m.Bin) == 0 || string(m.Bin) == "null":
	case json.Unmarshal(m.Bin, &single) == nil:
		bins[base] = single
	case json.Unmarshal(m.Bin, &bins) == nil:
	default:
		return "", fail(ErrRefused, "the package.json of "+m.Name+" has an unreadable bin", "")
	}
	names := slices.Sorted(maps.Keys(bins))
	list := quoted(strings.Join(names, ", "))
	switch {
	case len(bins) == 0:
		return "", fail(ErrRefused, "the package "+m.Name+" has no command to run", "it is a library, not a server")
	case bin != "":
		if f, ok := bins[bin]; ok {
			return f, nil
		}
		return "", fail(ErrRefused, "the package "+m.Name+" has no command "+quoted(bin), "it has "+list)
	case len(slices.Compact(slices.Sorted(maps.Values(bins)))) == 1:
		return bins[names[0]], nil
	case bins[base] != "":
		return bins[base], nil
	}
	return "", fail(ErrRefused, "the package "+m.Name+" has several commands and none of its own name", "pick one with #COMMAND of "+list)
}

// program says how to start a file: by its #! line, which has to name node,
// or as a binary.
func program(f io.Reader, full string, mode os.FileMode) ([]string, error) {
	r := bufio.NewReaderSize(f, 4096)
	head, _ := r.Peek(4)
	switch {
	case string(head) == "\x7fELF":
		if mode&0o100 == 0 {
			return nil, fail(ErrRefused, "the command "+quoted(full)+" is a binary that is not marked as executable", "")
		}
		return []string{full}, nil
	case len(head) >= 2 && string(head[:2]) == "#!":
		line, err := r.ReadString('\n')
		if err != nil && err != io.EOF {
			return nil, err
		}
		flags, ok := nodeFlags(line)
		if !ok {
			return nil, fail(ErrRefused, "the command "+quoted(full)+" needs another interpreter than node: "+quoted(strings.TrimSpace(line)), "")
		}
		return append(append([]string{nodeBin}, flags...), full), nil
	case slices.Contains([]string{".js", ".mjs", ".cjs"}, path.Ext(full)):
		return []string{nodeBin, full}, nil
	}
	return nil, fail(ErrRefused, "the command "+quoted(full)+" is neither a script for node nor a binary", "")
}

// nodeFlags reads a #! line: /usr/bin/env [-S] node [FLAG…] or …/node [FLAG…].
func nodeFlags(line string) ([]string, bool) {
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if len(words) > 0 && path.Base(words[0]) == "env" {
		words = words[1:]
		if len(words) > 0 && (words[0] == "-S" || words[0] == "--split-string") {
			words = words[1:]
		} else if len(words) > 0 && strings.HasPrefix(words[0], "-S") {
			words[0] = words[0][2:]
		}
	}
	if len(words) == 0 || path.Base(words[0]) != "node" && path.Base(words[0]) != "nodejs" {
		return nil, false
	}
	for _, w := range words[1:] {
		if !strings.HasPrefix(w, "-") {
			return nil, false
		}
	}
	return words[1:], true
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
