package images

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// makeDir seals a folder of this host: a Node or Python project, or one with a
// program in it. It is packed anew at each build, since it is the user's to
// change; what it runs on is shared with other images.
func (b *Builder) makeDir(ctx context.Context, w *work, ref Ref, lock *Lock) (product, error) {
	root, err := os.OpenRoot(ref.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return product{}, fail(ErrNotFound, "there is no folder "+quoted(ref.Name), "give the folder that holds the server")
	}
	if err != nil {
		return product{}, err
	}
	defer root.Close() //nolint:errcheck // only read from
	if n, over := treeSize(b.cfg.MaxBytes, ref.Name); over {
		return product{}, tooBig(quoted(filepath.Base(ref.Name)), n)
	}
	file, err := startFile(root, ref)
	if err != nil {
		return product{}, err
	}
	info, err := root.Stat(file) // first: to open a pipe is to wait for its other end
	if err != nil {
		return product{}, fail(ErrRefused, "the folder has no file "+quoted(file)+" to start", "name it: dir:FOLDER#FILE")
	}
	if !info.Mode().IsRegular() {
		return product{}, fail(ErrRefused, quoted(file)+" is not a file", "name the file that starts the server: dir:FOLDER#FILE")
	}
	f, err := root.Open(file)
	if err != nil {
		return product{}, fail(ErrRefused, "the file "+quoted(file)+" cannot be read", "see its permissions")
	}
	defer f.Close() //nolint:errcheck // only read from
	done := b.step("package", "packing the folder "+filepath.Base(ref.Name))
	p := product{name: filepath.Base(ref.Name), version: "0", env: imageEnv(), dir: userHome}
	full := path.Join(appDir, file)
	if startsPython(f, file) {
		err = b.pythonFolder(ctx, w, root, full, lock, &p)
	} else {
		err = b.nodeFolder(ctx, f, full, info.Mode(), lock, &p)
	}
	if err != nil {
		return product{}, err
	}
	layer, err := b.packFolder(ctx, w, ref.Name)
	if err != nil {
		return product{}, err
	}
	p.layers = append(p.layers, layer)
	done(layer.Size)
	return p, nil
}

// leftBehind are names that no sealed folder holds: history, and the files
// where people keep secrets.
func leftBehind(name string) bool {
	switch base := path.Base(name); base {
	case ".git", ".venv", ".env", ".envrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".netrc", ".git-credentials":
		return true
	default:
		return strings.HasPrefix(base, ".env.")
	}
}

func (b *Builder) packFolder(ctx context.Context, w *work, dir string) (blob, error) {
	file := filepath.Join(w.dir, "layer")
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	if err := l.tree(ctx, dir, appDir[1:], leftBehind); err != nil {
		l.abandon()
		return blob{}, err
	}
	layer, err := l.finish()
	if err != nil {
		return blob{}, err
	}
	return layer, b.st.adopt(file, layer)
}

// startFile is the file that starts the server: the one that was named, the one
// command or main file of package.json, or a usual name.
func startFile(root *os.Root, ref Ref) (string, error) {
	if ref.Bin != "" {
		return path.Clean(ref.Bin), nil
	}
	if data, err := readSmall(root, "package.json"); err == nil {
		var m struct {
			manifest
			Main string `json:"main"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return "", fail(ErrRefused, "the folder's package.json is not readable: "+quoted(err.Error()), "")
		}
		if len(m.Bin) > 0 {
			return m.command("")
		}
		if m.Main != "" {
			return path.Clean(m.Main), nil
		}
	}
	for _, name := range []string{"index.js", "server.js", "main.py", "server.py", "__main__.py"} {
		if info, err := root.Stat(name); err == nil && info.Mode().IsRegular() {
			return name, nil
		}
	}
	return "", fail(ErrRefused, "nothing says which file of "+quoted(ref.Name)+" starts the server", "name it: dir:FOLDER#FILE")
}

func readSmall(root *os.Root, name string) ([]byte, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > 4<<20 {
		return nil, fail(ErrRefused, quoted(name)+" is not a file of a sane size", "")
	}
	return root.ReadFile(name)
}

func startsPython(f io.ReadSeeker, name string) bool {
	if path.Ext(name) == ".py" {
		return true
	}
	line, _ := bufio.NewReader(io.LimitReader(f, 4096)).ReadString('\n')
	_, err := f.Seek(0, io.SeekStart)
	return err == nil && strings.HasPrefix(line, "#!") && strings.Contains(line, "python")
}

// nodeFolder puts Node under the folder, or nothing where it starts by itself.
func (b *Builder) nodeFolder(ctx context.Context, f io.Reader, full string, mode fs.FileMode, lock *Lock, p *product) error {
	entry, err := program(f, full, mode)
	if err != nil {
		return err
	}
	sys, err := b.system(ctx, b.cfg.ExtraPackages, pinsOf(lock), false)
	if err != nil {
		return err
	}
	p.entry, p.debs, p.layers = entry, sys.debs(), []blob{sys.base.Layer}
	if entry[0] == nodeBin {
		release := b.cfg.Node
		if lock != nil && lock.Node != (NodeRelease{}) {
			release = lock.Node
		}
		node, err := b.node(ctx, release)
		if err != nil {
			return err
		}
		p.node, p.layers = *node.Node, append(p.layers, node.Layer)
		p.parts = []part{npmPart(nodePackage(), node.Node.Version, node.Node.Integrity)}
	}
	if sys.extras != nil {
		p.layers = append(p.layers, sys.extras.Layer)
	}
	return nil
}

// pythonFolder puts Python under the folder, with what the project says that it
// needs.
func (b *Builder) pythonFolder(ctx context.Context, w *work, root *os.Root, full string, lock *Lock, p *product) error {
	needs, err := pythonNeeds(root)
	if err != nil {
		return err
	}
	if _, err := b.python(ctx, w, pyJob{needs: needs}, lock, p); err != nil {
		return err
	}
	p.entry = []string{pythonBin, full}
	return nil
}

// pythonNeeds are the requirements of a project, from pyproject.toml or
// requirements.txt. A line of options, or one that names a place, is refused.
func pythonNeeds(root *os.Root) ([]string, error) {
	var needs []string
	if data, err := readSmall(root, "pyproject.toml"); err == nil {
		var doc struct {
			Project struct {
				Dependencies []string `toml:"dependencies"`
			} `toml:"project"`
		}
		if err := toml.Unmarshal(data, &doc); err != nil {
			return nil, fail(ErrRefused, "the folder's pyproject.toml is not readable: "+quoted(err.Error()), "")
		}
		needs = doc.Project.Dependencies
	} else if data, err := readSmall(root, "requirements.txt"); err == nil {
		for line := range bytes.Lines(data) {
			text, _, _ := strings.Cut(string(line), " #")
			if text = strings.TrimSpace(text); text != "" && !strings.HasPrefix(text, "#") {
				needs = append(needs, text)
			}
		}
	}
	for _, n := range needs {
		if strings.HasPrefix(n, "-") || strings.ContainsAny(n, "@\n\\") || strings.Contains(n, "://") {
			return nil, fail(ErrRefused, fmt.Sprintf("the project asks for %s, which is no package of the index", quoted(n)), "name packages and versions only")
		}
	}
	return slices.Clone(needs), nil
}
