package policies

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/sandboxd/sandboxd/policies/strict"
)

//go:embed presets/*.yaml
var presetFS embed.FS

// ErrNoPreset marks a name that no preset has.
var ErrNoPreset = errors.New("no such preset")

// Preset returns a shipped policy, freshly parsed. Its risky rules were
// reviewed, so its Warnings tell only of registries without a host here. An
// unknown name is an ErrNoPreset that lists the known ones.
func (l Loader) Preset(name string) (*Policy, error) {
	data, err := PresetSource(name)
	if err != nil {
		return nil, err
	}
	file := "preset " + name
	p, err := (&decoder{r: strict.NewReporter(file), loader: l, reviewed: true}).parse(file, data)
	if err != nil {
		return nil, err
	}
	p.Name = name
	return p, nil
}

// PresetSource returns a preset's document, to show or to start from.
func PresetSource(name string) ([]byte, error) {
	data, err := presetFS.ReadFile(path.Join("presets", name+".yaml"))
	if err != nil || strings.ContainsAny(name, "/.") {
		known := Presets()
		hint := "the presets are " + strings.Join(known, ", ")
		if s := strict.Nearest(name, known); s != "" {
			hint = "did you mean " + s + "? " + hint
		}
		return nil, fmt.Errorf("%w: %.64q: %s; a file is given with its path", ErrNoPreset, name, hint)
	}
	return data, nil
}

// Presets lists the presets' names in order.
func Presets() []string {
	entries, err := fs.ReadDir(presetFS, "presets")
	if err != nil { // cannot happen with an embedded folder
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}
