package images

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// nextKey names the record of a preview, beside that of the image in use.
func (b *Builder) nextKey(ref Ref) string { return b.key(ref) + nextSuffix }

const nextSuffix = "-next"

// Preview resolves ref anew and builds what it finds, while the image that was
// built before stays what ref means. The caller runs drop when it has seen
// enough; what was fetched stays until the next Prune, for an Update that
// follows. It errs with ErrReference for what is never locked.
func (b *Builder) Preview(ctx context.Context, ref Ref) (img Image, drop func() error, err error) {
	if ref.Kind == KindWASM || ref.Kind == KindDir {
		return Image{}, nil, fail(ErrReference, ref.String()+" is taken as it is at each start", "there is nothing to update")
	}
	img, err = b.buildAs(ctx, ref, b.nextKey(ref), nil, true)
	if err != nil {
		return Image{}, nil, err
	}
	return img, func() error {
		err := os.Remove(b.st.path("refs", b.nextKey(ref)+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}, nil
}

// Change is one package whose version differs between two locks.
type Change struct {
	Kind string `json:"kind"` // of package: deb, node, npm, pypi or go
	Name string `json:"name"`
	Old  string `json:"old,omitempty"` // empty: it was added
	New  string `json:"new,omitempty"` // empty: it was removed
}

// Changes compares what two images were built from, by kind and name. A
// version that stayed the same while its content changed has the hashes
// beside it.
func Changes(old, now *Lock) []Change {
	had, has := old.packages(), now.packages()
	var out []Change
	for k, v := range had {
		if w := has[k]; w != v {
			out = append(out, Change{Kind: k.kind, Name: k.name, Old: v.show(w), New: w.show(v)})
		}
	}
	for k, w := range has {
		if _, ok := had[k]; !ok {
			out = append(out, Change{Kind: k.kind, Name: k.name, New: w.version})
		}
	}
	slices.SortFunc(out, func(x, y Change) int {
		return cmp.Or(strings.Compare(x.Kind, y.Kind), strings.Compare(x.Name, y.Name))
	})
	return out
}

type packageKey struct{ kind, name string }

type packageAt struct{ version, hash string }

func (p packageAt) show(other packageAt) string {
	if p.version == other.version && p.hash != other.hash {
		return p.version + " (" + p.hash + ")"
	}
	return p.version
}

// packages are all that a lock pins. One that is in an npm tree several times
// is told apart by its place.
func (l *Lock) packages() map[packageKey]packageAt {
	out := map[packageKey]packageAt{}
	for _, d := range l.Base {
		out[packageKey{"deb", d.Name}] = packageAt{d.Version, d.SHA256}
	}
	if l.Node != (NodeRelease{}) {
		out[packageKey{"node", "node"}] = packageAt{l.Node.Version, l.Node.Integrity}
	}
	for _, w := range l.Wheels { // NAME-VERSION-…, as PEP 427 has it
		if parts := strings.SplitN(w.File, "-", 3); len(parts) == 3 {
			out[packageKey{"pypi", parts[0]}] = packageAt{parts[1], w.SHA256}
		}
	}
	if l.Go != nil {
		out[packageKey{"go", "toolchain"}] = packageAt{version: l.Go.Toolchain}
		for _, m := range l.Go.Modules {
			out[packageKey{"go", m.Path}] = packageAt{m.Version, m.Sum}
		}
	}
	var tree struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	if len(l.NPM) > 0 && json.NewDecoder(bytes.NewReader(l.NPM)).Decode(&tree) == nil {
		for place, p := range tree.Packages {
			if name := strings.TrimPrefix(place, "node_modules/"); name != "" {
				out[packageKey{"npm", strings.ReplaceAll(name, "/node_modules/", " > ")}] = packageAt{p.Version, p.Integrity}
			}
		}
	}
	return out
}
